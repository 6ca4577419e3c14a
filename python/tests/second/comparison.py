"""Compares the second implementation's results with the server's."""

from croupier import pb
from second import cases, reasons, row, wire

NONE = -float("inf")
NO_LOGPROBS = dict(logprob=None, rank=None, top=[], top_logprobs=[], logprobs=[])


def expected(case):
    """The expected result of a case, with the names of `wire.told`."""
    text = case.text()
    result = row.sample(cases.as_f32_row(case.row()), text, case.mask())
    return {"status": result.status, **(of_token(case, text, result) if result.status == "OK" else {})}


def of_token(case, text, result):
    after = row.behind(text, result, result.token).state
    return dict(
        told(case, result, result.token), finish=text.finish(result.token), state=of_state(case, after), truncated=False)


def told(case, result, token):
    """What is reported of a row's token, with the names of `wire.told`."""
    asked, survivors = case.asked, result.survivors()
    entropies = (result.left.entropy().hex(), result.raw.entropy().hex()) if asked.entropy else (None, None)
    return dict(
        of_logprobs(case, result, token) if asked.has_logprobs else NO_LOGPROBS, token=token, rounded=False,
        support=len(survivors) if asked.has_report else None, survivors=survivors[: asked.survivors],
        **dict(zip(("entropy", "raw_entropy"), entropies)), why_not=reasons.why_not(result, asked.whys))


def of_logprobs(case, result, token):
    logprobs = result.logprobs(case.mode)
    top = list(logprobs)[: case.asked.top_n]
    return dict(
        logprob=wire.bits(logprobs.get(token, NONE)), rank=result.rank(case.mode, token), top=top,
        top_logprobs=wire.bits([logprobs[each] for each in top]), logprobs=wire.bits([logprobs.get(each, NONE) for each in case.wanted()]))


def of_state(case, state):
    return {name: value.hex() for name, value in state.items()} if case.asked.state else {}


def request(some):
    """The message with these cases."""
    first = some[0]
    message = pb.SampleRequest(vocab_size=first.vocab, logits_dtype=wire.DTYPES[first.dtype], eos_token_ids=first.eos)
    message.logits.data = b"".join(case.row().tobytes() for case in some)
    for case in some:
        sent = message.rows.add(
            params=wire.params_message(case), prompt_token_ids=case.prompt,
            output_token_ids=case.output, sampler_state=wire.state_message(case.state))
        if case.is_masked:
            sent.token_mask = wire.mask_bytes(case.mask())
    return message


def observed(answer):
    """The server's result for one row of the answer to `request`."""
    return {**of_row(answer, [answer.token]), "seed": answer.seed}


def of_row(answer, tokens):
    status = wire.status(answer)
    if status != "OK":
        return {"status": status}
    return dict(
        wire.told(tokens[0]), status=status, finish=wire.finish(answer), state=wire.state(answer), truncated=answer.truncated)


def differences(connection, some):
    """The cases of one message that differ, written out."""
    compared = [(case, {**expected(case), "seed": case.seed}, observed(answer)) for case, answer in zip(some, connection.sample(request(some)).rows)]
    return [written(*each) for each in compared if each[1] != each[2]]


def written(case, of_second, of_server):
    """The differences, and the case or round in the form in which `CROUPIER_SECOND_CASE` takes it to compare it again."""
    names = sorted(name for name in {*of_second, *of_server} if of_second.get(name) != of_server.get(name))
    lines = [f"  {name}: second {shortened(of_second.get(name))}, server {shortened(of_server.get(name))}" for name in names]
    return "\n".join([f'CROUPIER_SECOND_CASE="{case!r}"', *lines])


def shortened(value):
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."
