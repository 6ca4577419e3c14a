"""Texts with drafts over several steps, and the sidecar's proposals and advice for the next draft (WorkResult.proposed_token_ids and
advised_draft_length)."""

import dataclasses

import numpy as np

from croupier import pb
from second import advice, bounds, cases, comparison, proposers, rounds, rules, wire
from second.measures import Measured
from second.params import Params

VOCABS = (2, 5, 20)
# Tokens that a thinking budget forces are also proposed. Neither these nor other forced tokens are tested here.
FORCING = ("thinking_budget", "forced_first_token", "forced_last_token")


def params(drawing, rule):
    given = {name: value for name, value in rules.params(drawing, rule).items() if name not in FORCING}
    whole = drawing.random.randint
    if drawing.chance(0.4):
        given["max_tokens"] = whole(3, 30)
    if drawing.chance(0.7):
        kind = drawing.one_of("NGRAM", "SUFFIX")
        given["proposer"] = {"kind": kind}
        if drawing.chance(0.5):
            shortest = whole(1, 3)
            given["proposer"].update(min_match=shortest, max_match=shortest + whole(0, 4), max_draft_tokens=whole(1, 12))
        if kind == "SUFFIX" and drawing.chance(0.5):
            given["proposer"]["min_token_prob"] = drawing.or_between([0.0, 0.5, 1.0], 0, 1)
    if drawing.chance(0.7):
        given["draft_length"] = dict(draft_cost=drawing.or_between([0.0, 0.5], 0, 1), verify_cost=drawing.or_between([0.0, 0.1], 0, 0.5))
        if drawing.chance(0.4):
            given["draft_length"]["max_draft_tokens"] = drawing.one_of(0, 1, 5, 64)
    return given


@dataclasses.dataclass(frozen=True)
class Speculated:
    """A text with its rule of acceptance."""

    case: cases.Case
    # Whether nothing is ever drafted.
    is_idle: bool = False
    # What the output is predicted to be.
    predicted: tuple = ()

    def at(self, step, text):
        """The step's round. A draft without tokens is a plain row."""
        chance = np.random.default_rng([self.case.logits_seed, step])
        case = dataclasses.replace(self.case, logits_seed=self.case.logits_seed + step, output=text.output, state=text.state)
        length = int(chance.integers(0, 5)) if chance.random() < 0.8 and not self.is_idle else 0
        parents = [int(chance.integers(-1, i)) if chance.random() < 0.3 else i - 1 for i in range(length)]
        return rounds.Round(case, str(chance.choice(["dense", "sparse", "deterministic"])), parents)


def texts(seed, count, rule):
    """`count` texts with one vocabulary."""
    own = np.random.default_rng(seed)
    vocab = int(own.choice(VOCABS))
    eos = own.choice(vocab, own.integers(2), replace=False).tolist()
    for _ in range(count):
        case = cases.case(
            int(own.integers(1 << 62)), vocab, eos, "f32", lambda drawing: {**params(drawing, rule), **rules.rule_of(drawing, rule)})
        case = dataclasses.replace(bounds.going_on(case), is_masked=False, state={})
        predicted = own.integers(vocab, size=int(own.integers(1, 40))).tolist() if case.params.proposer and own.random() < 0.5 else []
        yield Speculated(case, predicted=tuple(predicted))


def idle_texts(seed, count):
    """Texts that never draft, with costs at which a draft is advised again only after many steps."""
    for number, each in enumerate(texts(seed, count, "REJECTION")):
        cost = {"draft_cost": 0.95 if number % 2 else 1.0}
        params = Params(proposer={"kind": "SUFFIX"}, draft_length=cost, acceptance={"rule": "REJECTION"})
        yield Speculated(dataclasses.replace(each.case, params=params, eos=[]), True)


class Walk:
    """A text that is being decoded."""

    def __init__(self, speculated):
        self.speculated, self.text, self.step = speculated, speculated.case.text(), 0
        self.acceptance = advice.Acceptance()

    def round(self):
        return self.speculated.at(self.step, self.text)

    def go_on(self):
        """Does a step and returns its expected result."""
        each = self.round()
        draft, _ = rounds.draft_of(each)
        verification = Measured(self.text, draft, each.rows(), each.target_masks())
        verdict = verification.run()
        self.step += 1
        if verdict.status != "OK":
            return {"status": verdict.status, "advised": None, "proposed": [], "tokens": []}
        self.text = verdict.text
        self.acceptance.see(advice.outcomes(draft, verification.tests))
        is_over = verdict.finish != "UNSPECIFIED"
        advised = None if is_over else self.acceptance.advised(self.text)
        return {"status": "OK", "tokens": verdict.tokens, "advised": advised,
                "proposed": [] if is_over else proposers.proposed(self.text, advised, self.speculated.predicted)}


def said(answer):
    advised = answer.advised_draft_length if answer.HasField("advised_draft_length") else None
    return {"status": wire.status(answer), "tokens": [token.token_id for token in answer.tokens], "advised": advised,
            "proposed": list(answer.proposed_token_ids)}


def differences(connection, some, steps=12):
    """The texts of one stream that differ, written out. A failed step has no result, and the next step has other rows."""
    first, wrong = some[0].case, []
    with wire.Stream(connection, first.vocab, first.eos) as stream:
        opening = pb.Step()
        for i, each in enumerate(some):
            case = each.case
            opening.open.add(
                sequence_id=i, params=wire.params_message(case), prompt_token_ids=case.prompt, output_token_ids=case.output,
                predicted_output_token_ids=each.predicted)
        wire.check_opened(opening, stream.step(opening, []))
        going = {i: Walk(each) for i, each in enumerate(some)}
        for _ in range(steps):
            works = {i: walk.round() for i, walk in going.items()}
            for (i, walk), answer in zip(list(going.items()), stream.step(*step(works)).work):
                of_second, of_server = walk.go_on(), said(answer)
                if of_second != of_server:
                    wrong.append(comparison.written(walk.speculated, of_second, of_server))
                if of_second != of_server or answer.finish_reason:
                    del going[i]
    return wrong


def step(works):
    """The message of a step, and its rows."""
    message, rows = pb.Step(), []
    for i, each in works.items():
        rows += each.rows()
        if each.parents or each.case.logits_seed % 2:
            rounds.work_of(message, i, each)
        else:
            message.work.add(sequence_id=i).sample.SetInParent()
    return message, rows
