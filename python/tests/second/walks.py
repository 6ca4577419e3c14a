"""Texts of a few tokens, token by token: the states of samplers, and how texts end."""

import dataclasses

from croupier import pb
from second import bounds, cases, comparison, row, wire

POSITIONS = 6


def texts(seed, count, params_of, vocabs=cases.VOCABS):
    """`count` texts with one vocabulary. A row's logits depend on its case's seed and its position."""
    [some] = cases.messages(seed, 1, count, params_of, vocabs)
    return [bounds.going_on(dataclasses.replace(case, dtype="f32", is_masked=False)) for case in some]


def differences(connection, some, positions=POSITIONS):
    """The texts of one stream that differ, written out."""
    first, wrong = some[0], []
    with wire.Stream(connection, first.vocab, first.eos) as stream:
        first_step = opening(some)
        wire.check_opened(first_step, stream.step(first_step, []))
        going = dict(enumerate(some))
        for _ in range(positions):
            step = pb.Step()
            for i in going:
                step.work.add(sequence_id=i).sample.SetInParent()
            answers = stream.step(step, [case.row() for case in going.values()]).work
            for (i, case), answer in zip(list(going.items()), answers):
                of_second, of_server = comparison.expected(case), comparison.of_row(answer, answer.tokens)
                if of_second != of_server:
                    wrong.append(comparison.written(case, of_second, of_server))
                if of_second == of_server and of_server.get("finish") == "UNSPECIFIED":
                    going[i] = following(case)
                else:
                    del going[i]
    return wrong


def opening(some):
    step = pb.Step()
    for i, case in enumerate(some):
        step.open.add(
            sequence_id=i, params=wire.params_message(case), prompt_token_ids=case.prompt, output_token_ids=case.output,
            sampler_state=wire.state_message(case.state))
    return step


def following(case):
    """The case at the next position, by the second implementation's result for this one."""
    text, result = case.text(), row.sample(case.row(), case.text())
    after = row.behind(text, result, result.token)
    return dataclasses.replace(case, output=after.output, state=after.state, logits_seed=case.logits_seed + 1)
