"""Scored tokens: ScoreWork of the schema, and docs/sampling.md, Why not this token."""

import dataclasses
import functools

import numpy as np

from croupier import pb
from second import bounds, cases, comparison, row, wire
from second.params import Params, Text


@dataclasses.dataclass(frozen=True)
class Score:
    """A text and `length` rows, each with the token that followed it."""

    case: cases.Case
    length: int

    def rows(self):
        return [cases.logits(self.case.logits_seed + place, self.case.vocab) for place in range(self.length)]

    def is_bare(self):
        """Whether the score has no LogprobsParams. Then the raw logprob and rank are reported (ScoreWork.logprobs)."""
        return not self.case.asked.has_logprobs

    def told(self):
        """The case with what its scores report; in mode RAW they have no `report` (Token.report)."""
        asked = dataclasses.replace(self.case.asked, top_n=0, logprobs=0, has_logprobs=True) if self.is_bare() else self.case.asked
        if self.case.mode == "RAW":
            asked = dataclasses.replace(asked, support=False, survivors=0, entropy=False, whys=())
        return dataclasses.replace(self.case, asked=asked)

    def sent_rows(self):
        return self.rows()

    def masks(self):
        """The masks of the rows. All are None in mode RAW, which ignores masks."""
        chance, case = np.random.default_rng(self.case.logits_seed), self.case
        has_some = case.is_masked and case.mode != "RAW"
        return [chance.random(case.vocab) < 0.8 if has_some else None for _ in range(self.length)]

    @functools.cached_property
    def tokens(self):
        """The scored tokens, often those that the rows give."""
        chance, tokens = np.random.default_rng(self.case.logits_seed + 1), []
        for result in self.results(self.rows(), tokens):
            is_own = result.status == "OK" and chance.random() < 0.6
            tokens.append(result.token if is_own else int(chance.integers(self.case.vocab)))
        return tokens

    def results(self, rows, tokens):
        """The results of the rows, each after the tokens before it."""
        text = self.case.text()
        for place, (logits, mask) in enumerate(zip(rows, self.masks())):
            result = row.sample(logits, text, mask)
            yield result
            text = row.behind(text, result, tokens[place]) if result.status == "OK" else text


def scores(seed, count, params_of):
    """`count` scores with one vocabulary."""
    own = np.random.default_rng(seed)
    [some] = cases.messages(seed, 1, count, params_of)
    for case in some:
        case = bounds.going_on(dataclasses.replace(case, dtype="f32", is_masked=own.random() < 0.3))
        case = case if case.asked.has_logprobs else dataclasses.replace(case, mode="RAW")
        yield Score(case.asking(8) if case.logits_seed % 3 == 0 else case, int(own.integers(1, 5)))


def expected(each):
    """The expected result of the scored tokens, and of the text's next token, since scoring commits nothing."""
    return {**scored(each), "next": comparison.expected(dataclasses.replace(each.case, is_masked=False))}


def scored(each, rows=None):
    """The result of the scored tokens, with these rows instead of the score's own if given."""
    rows, is_raw = each.rows() if rows is None else rows, each.case.mode == "RAW"
    results = [of_sent(logits) for logits in rows] if is_raw else list(each.results(rows, each.tokens))
    failed = next((result.status for result in results if result.status != "OK"), None)
    if failed:
        return {"status": failed}
    told = [comparison.told(each.told(), *one) for one in zip(results, each.tokens)]
    return {"status": "OK", "truncated": False, "told": told}


def of_sent(logits):
    """The result of a row without parameters. It fails as any other row does, and its token is not used."""
    return row.sample(logits, Text(Params(temperature=0.0), [], [], [], 0))


def observed(connection, some):
    first = some[0].case
    with wire.Stream(connection, first.vocab, first.eos) as stream:
        opening = pb.Step()
        for i, each in enumerate(some):
            case = each.case
            opening.open.add(
                sequence_id=i, params=wire.params_message(case), prompt_token_ids=case.prompt, output_token_ids=case.output,
                sampler_state=wire.state_message(case.state))
        wire.check_opened(opening, stream.step(opening, []))
        answers = stream.step(step(some), [logits for each in some for logits in each.sent_rows()]).work
        plain = pb.Step()
        for i in range(len(some)):
            plain.work.add(sequence_id=i).sample.SetInParent()
        following = stream.step(plain, [each.case.row() for each in some]).work
    return [{**seen(answer), "next": comparison.of_row(after, after.tokens)} for answer, after in zip(answers, following)]


def step(some):
    out = pb.Step()
    for i, each in enumerate(some):
        # Raw scores need no sequence.
        work = out.work.add(**({} if each.is_bare() and each.length % 2 else {"sequence_id": i}))
        work.score.token_ids.extend(each.tokens)
        if not each.is_bare():
            work.score.logprobs.CopyFrom(wire.params_message(each.case).logprobs)
        if each.masks()[0] is not None:
            work.token_masks = b"".join(wire.mask_bytes(mask) for mask in each.masks())
    return out


def seen(answer):
    status = wire.status(answer)
    if status != "OK":
        return {"status": status}
    return {"status": status, "truncated": answer.truncated, "told": [wire.told(token) for token in answer.tokens]}


def differences(connection, some):
    compared = [(each, expected(each), said) for each, said in zip(some, observed(connection, some))]
    return [comparison.written(*each) for each in compared if each[1] != each[2]]
