"""Random drafts, with the results of the second implementation and of a server."""

import dataclasses

import numpy as np

from croupier import pb
from second import bounds, cases, comparison, measures, numbers, proposals, row, rules, wire
from second.drafts import Draft
from second.measures import Measured

RULES = ("REJECTION", "BLOCK", "GREEDY", "TYPICAL", "RELAXED", "SYNTHETIC")
VOCABS = (2, 5, 20, 60, 200)
KINDS = ("deterministic", "dense", "sparse", "kept")


@dataclasses.dataclass(frozen=True)
class Round:
    """A text, and the shape of a draft. `rows`, `draft_rows` and `sent` are computed from the seeds."""

    case: cases.Case
    kind: str
    parents: list
    # The tokens of the draft model by column, if it does not know all (StreamConfig.draft_vocabulary).
    known: tuple = dataclasses.field(default=(), kw_only=True)

    def next_case(self):
        return dataclasses.replace(self.case, logits_seed=self.case.logits_seed + 1, is_masked=False)

    def chance(self, purpose):
        return np.random.default_rng([self.case.logits_seed, purpose])

    def rows(self):
        """The target's rows after the text and after each draft token. All but a few are similar."""
        chance, case = self.chance(1), self.case
        base = cases.logits(case.logits_seed, case.vocab)
        rows = [proposals.near(base, chance) if chance.random() < 0.9 else cases.logits(int(chance.integers(1 << 32)), case.vocab)
                for _ in range(len(self.parents) + 1)]
        if chance.random() < 0.1:
            rows[len(rows) // 2][0] = np.nan
        return rows

    def draft_rows(self):
        chance, rows = self.chance(2), self.rows()
        return [self.known_of(proposals.near(rows[parent + 1], chance)) for parent in self.parents]

    def known_of(self, row):
        """The row in which all tokens that the draft model does not know are masked."""
        if self.known:
            row[~np.isin(np.arange(len(row)), self.known)] = -np.inf
        return row

    def sent(self):
        """Draft tokens that the worker draws itself, and the probabilities they were drawn from (None: certain)."""
        chance, tokens, probabilities = self.chance(3), [], []
        for draft_row in self.draft_rows():
            probs = proposals.likely(draft_row, chance)
            tokens.append(int(chance.choice(self.case.vocab, p=probs / probs.sum())))
            probabilities.append(None if self.kind == "deterministic" else cases.as_f32_row(self.encoded(probs)[0]))
        return tokens, probabilities

    def sent_rows(self):
        return self.rows()

    def sent_draft_rows(self):
        return [row[list(self.known)] if self.known else row for row in self.draft_rows()]

    def encoded(self, probs):
        """The probabilities as they are sent, and their dtype. Only dense ones may have another dtype than the rows."""
        dtype = str(self.chance(6).choice(["f32", "f16", "bf16"])) if self.kind == "dense" else "f32"
        return proposals.encoded(probs, dtype), dtype

    def masks(self, purpose, count):
        """One mask for each of `count` rows, or as many None."""
        chance = self.chance(purpose)
        return [chance.random(self.case.vocab) < 0.8 if self.case.is_masked else None for _ in range(count)]

    def target_masks(self):
        return self.masks(4, len(self.parents) + 1)

    def draft_masks(self):
        return self.masks(5, len(self.parents))

    def is_measured(self):
        """VerifyWork.measure, which changes no token."""
        return bool(self.chance(7).random() < 0.5)


def rounds(seed, count, kind, is_tree, rule, params_of=None, vocabs=VOCABS):
    """`count` rounds with one vocabulary. `params_of` draws all parameters except the rule's."""
    params_of = params_of or rules.params
    own = np.random.default_rng(seed)
    vocab = int(own.choice(vocabs))
    eos = own.choice(vocab, own.integers(2), replace=False).tolist()
    known = known_tokens(np.random.default_rng([*np.atleast_1d(seed), 1]), vocab) if kind == "kept" else ()
    for _ in range(count):
        case = cases.case(
            int(own.integers(1 << 62)), vocab, eos, "f32", lambda drawing: {**params_of(drawing, rule), **rules.rule_of(drawing, rule)})
        length = int(own.integers(0, 6))
        parents = [int(own.integers(-1, i)) for i in range(length)] if is_tree else list(range(-1, length - 1))
        case = dataclasses.replace(bounds.going_on(case), is_masked=own.random() < 0.2, state={})
        yield Round(case.asking(8) if case.logits_seed % 3 == 0 else case, kind, parents, known=known)


def known_tokens(chance, vocab):
    """Some tokens in any order, in one of two streams."""
    count = int(chance.integers(max(vocab // 4, 1), vocab + 1))
    return tuple(chance.choice(vocab, count, replace=False).tolist()) if chance.random() < 0.5 else ()


def draft_of(each):
    """The second implementation's draft, and the status with which drafting fails."""
    if each.kind != "kept":
        tokens, probabilities = each.sent()
        return Draft(tokens, each.parents, [None if probs is None else proposals.masses_of(probs) for probs in probabilities]), "OK"
    draft, texts = Draft([], each.parents, []), {-1: each.case.text()}
    masks = each.draft_masks()
    for node, logits in enumerate(each.draft_rows()):
        text = texts[each.parents[node]]
        result = row.sample(logits, text, masks[node])
        if result.status != "OK":
            return draft, result.status
        position = each.case.text().position + draft.depth(node)
        number = numbers.uniform(text.seed, position, numbers.DRAFT, draft.index(node))
        draft.tokens.append(row.drawn(result.left, text, number))
        draft.distributions.append(row.distribution(result))
        texts[node] = row.behind(text, result, draft.tokens[node])
    return draft, "OK"


def proposed(each, draft):
    """What is reported of kept draft tokens: only how the text would end with each (WorkResult.finish_reason)."""
    text = each.case.text()
    for token, parent in zip(draft.tokens, draft.parents):
        output = [*text.output, *(draft.tokens[node] for node in draft.path(parent))]
        yield {**wire.NOTHING, "token": token, "finish": dataclasses.replace(text, output=output).finish(token)}


def expected(each, rows=None):
    """The expected result, with these target rows instead of the round's own if given."""
    draft, failure = draft_of(each)
    told = list(proposed(each, draft)) if each.kind == "kept" else draft.tokens
    if failure != "OK":
        return {"drafted": told, "status": failure, "next": following(each, each.case.text(), "UNSPECIFIED")}
    verification = Measured(each.case.text(), draft, each.rows() if rows is None else rows, each.target_masks())
    verdict = verification.run()
    out = {"drafted": told, "status": verdict.status,
           "next": following(each, verdict.text or each.case.text(), verdict.finish or "UNSPECIFIED")}
    if verdict.status == "OK":
        places = zip([-1, *verdict.path], verdict.tokens)
        out.update(
            told=[comparison.told(each.case, verification.target(place), token) for place, token in places], path=verdict.path,
            tests=verification.told() if each.is_measured() else [], last=verdict.last, lossless=verification.is_lossless(verdict),
            finish=verdict.finish, truncated=False, state=comparison.of_state(each.case, verdict.text.state),
            accepted=len(verdict.path))
    return out


def following(each, text, finish):
    """The result of a plain row afterwards. A failed verification changes nothing."""
    if finish != "UNSPECIFIED":
        return {"status": "SEQUENCE_FINISHED"}
    return comparison.expected(dataclasses.replace(each.next_case(), output=text.output, state=text.state))


def work_of(step, number, each):
    """Adds a verification to a step."""
    work = step.work.add(sequence_id=number)
    verify = work.verify
    if each.case.is_masked:
        work.token_masks = b"".join(wire.mask_bytes(mask) for mask in each.target_masks())
    if each.kind == "kept":
        verify.kept.SetInParent()
        return verify
    tokens, probabilities = each.sent()
    verify.draft_token_ids.extend(tokens)
    verify.parents.extend(each.parents)
    if each.kind == "deterministic":
        verify.deterministic.SetInParent()
    elif each.kind == "dense":
        sent = [each.encoded(probs) for probs in probabilities]
        verify.dense.probs = b"".join(probs.tobytes() for probs, _ in sent)
        verify.dense.dtype = wire.DTYPES[each.encoded(np.ones(1))[1]]
    else:
        verify.sparse.SetInParent()
        for probs in probabilities:
            listed = np.flatnonzero(probs)[::-1]
            verify.sparse.counts.append(len(listed))
            verify.sparse.token_ids.extend(listed.tolist())
            verify.sparse.probs.extend(probs[listed].tolist())
    return verify


def draft(stream, some, out):
    """Lets the server draw the drafts: draft work for one token of each round per step."""
    for node in range(max(len(each.parents) for each in some)):
        going = [i for i, each in enumerate(some) if len(each.parents) > node and out[i]["status"] == "OK"]
        step = pb.Step()
        for i in going:
            work = step.work.add(sequence_id=i)
            work.draft.parent = some[i].parents[node]
            if some[i].case.is_masked:
                work.token_masks = wire.mask_bytes(some[i].draft_masks()[node])
        for i, answer in zip(going, stream.step(step, [some[i].sent_draft_rows()[node] for i in going]).work):
            out[i]["status"] = wire.status(answer)
            out[i]["drafted"] += [{**wire.told(token), "finish": wire.finish(answer)} for token in answer.tokens]


def differences(connection, some):
    """The rounds of one stream that differ, written out."""
    compared = [(each, expected(each), seen) for each, seen in zip(some, observed(connection, some))]
    return [comparison.written(*each) for each in compared if each[1] != each[2]]


def observed(connection, some):
    """The server's result for each round."""
    first = some[0].case
    with wire.Stream(connection, first.vocab, first.eos, some[0].known) as stream:
        opening = pb.Step()
        for i, each in enumerate(some):
            opening.open.add(
                sequence_id=i, params=wire.params_message(each.case), prompt_token_ids=each.case.prompt, output_token_ids=each.case.output)
        wire.check_opened(opening, stream.step(opening, []))
        out = [{"drafted": [], "status": "OK"} for _ in some]
        if some[0].kind == "kept":
            draft(stream, some, out)
        else:
            for each, said in zip(some, out):
                said["drafted"] = each.sent()[0]
        verify(stream, some, out)
        go_on(stream, some, out)
    return out


def go_on(stream, some, out):
    """Samples a plain row of each text."""
    step = pb.Step()
    for i in range(len(some)):
        step.work.add(sequence_id=i).sample.SetInParent()
    for said, answer in zip(out, stream.step(step, [each.next_case().row() for each in some]).work):
        said["next"] = comparison.of_row(answer, answer.tokens)


def verify(stream, some, out):
    going, step = [i for i, said in enumerate(out) if said["status"] == "OK"], pb.Step()
    for i in going:
        message = work_of(step, i, some[i])
        message.measure = some[i].is_measured()
        if some[i].kind == "kept":
            message.draft_token_ids.extend(told["token"] for told in out[i]["drafted"])
    for i, answer in zip(going, stream.step(step, [target for i in going for target in some[i].sent_rows()]).work):
        out[i]["status"] = wire.status(answer)
        if out[i]["status"] == "OK":
            out[i].update(verified(answer))


def verified(answer):
    return dict(
        told=[wire.told(token) for token in answer.tokens], path=list(answer.verify.accepted_path),
        tests=[measures.said(test) for test in answer.verify.tests],
        last=pb.LastToken.Name(answer.verify.last_token).removeprefix("LAST_TOKEN_"), finish=wire.finish(answer),
        state=wire.state(answer), lossless=answer.verify.lossless, truncated=answer.truncated,
        accepted=answer.verify.accepted_count)
