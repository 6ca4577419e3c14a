"""What the second implementation says of a case beside what the server says of it."""

from croupier import pb
from second import cases, reasons, row, wire

NONE = -float("inf")


def expected(case):
    """In the words of `wire.told`."""
    text = case.text()
    result = row.sample(cases.as_f32_row(case.row()), text, case.mask())
    return {"status": result.status, **(of_token(case, text, result) if result.status == "OK" else {})}


def of_token(case, text, result):
    after = row.behind(text, result, result.token).state
    return dict(
        told(case, result, result.token), finish=text.finish(result.token), state={name: value.hex() for name, value in after.items()})


def told(case, result, token):
    """Of a token that a row gave, in the words of `wire.told`."""
    logprobs = result.logprobs(case.mode)
    listed = list(logprobs)[: wire.TOP_N]
    survivors = result.survivors()
    return dict(
        token=token, logprob=wire.bits(logprobs.get(token, NONE)), rank=result.rank(case.mode, token), top=listed,
        top_logprobs=wire.bits([logprobs[each] for each in listed]),
        logprobs=wire.bits([logprobs.get(each, NONE) for each in range(min(case.vocab, wire.LISTED))]), support=len(survivors),
        survivors=survivors, entropy=result.left.entropy().hex(), raw_entropy=result.raw.entropy().hex(), rounded=False,
        why_not=reasons.why_not(result, case.whys))


def request(some):
    """The cases of one message."""
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
    """Of one row of an answer to `request`."""
    return of_row(answer, [answer.token])


def of_row(answer, tokens):
    status = wire.status(answer)
    if status != "OK":
        return {"status": status}
    return {"status": status, **wire.told(tokens[0]), "finish": wire.finish(answer), "state": wire.state(answer)}


def differences(connection, some):
    """Of the cases of one message those that differ, written out."""
    compared = [(case, expected(case), observed(answer)) for case, answer in zip(some, connection.sample(request(some)).rows)]
    return [written(*each) for each in compared if each[1] != each[2]]


def written(case, of_second, of_server):
    """What differs, and the case or round as `CROUPIER_SECOND_CASE` takes it to compare it again."""
    names = sorted(name for name in {*of_second, *of_server} if of_second.get(name) != of_server.get(name))
    lines = [f"  {name}: second {shortened(of_second.get(name))}, server {shortened(of_server.get(name))}" for name in names]
    return "\n".join([f'CROUPIER_SECOND_CASE="{case!r}"', *lines])


def shortened(value):
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."
