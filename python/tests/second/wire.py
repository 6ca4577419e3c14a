"""Messages to a server, and the content of its answers, with the same names as the second implementation's results."""

import queue

import grpc
import numpy as np

from croupier import pb
from second.numbers import LOW_64

DTYPES = {"f32": pb.LOGITS_DTYPE_F32, "f16": pb.LOGITS_DTYPE_F16, "bf16": pb.LOGITS_DTYPE_BF16}
OPTIONS = [("grpc.default_authority", "localhost"), ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
STATE = {"mu": "mirostat_mu", "sum": "adaptive_sum", "weight": "adaptive_weight"}


def fill(message, fields):
    for name, value in fields.items():
        if isinstance(value, (list, tuple)):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)


def params_message(case):
    """The parameters of a case, with what it asks for."""
    asked = case.asked
    message = pb.SamplingParams(seed=case.seed, return_sampler_state=asked.state)
    for name, value in case.params.items():
        if name in WRITERS:
            WRITERS[name](message, value)
        else:
            fill(message, {name: value})
    if asked.has_logprobs:
        message.logprobs.mode = getattr(pb, f"LOGPROBS_MODE_{case.mode}")
        message.logprobs.top_n = min(case.vocab, asked.top_n)
        message.logprobs.token_ids.extend(case.wanted())
    if asked.has_report:
        message.report.support_size = asked.support
        message.report.max_surviving_token_ids = asked.survivors
        message.report.entropy = asked.entropy
        message.report.why_not_token_ids.extend(asked.whys)
    return message


def words(name):
    def write(message, value):
        for tokens in value:
            getattr(message, name).add(token_ids=tokens)
    return write


def write_thinking(message, value):
    fill(message.thinking_budget, {name: given for name, given in value.items() if name != "other_ends"})
    for tokens in value.get("other_ends", ()):
        message.thinking_budget.other_ends.add(token_ids=tokens)


def mark(name):
    def write(message, value):
        fill(getattr(message.watermark, name), value)
    return write


def write_acceptance(message, value):
    message.acceptance.rule = getattr(pb, f"ACCEPTANCE_RULE_{value['rule']}")
    fill(message.acceptance, {name: number for name, number in value.items() if name != "rule"})


def write_proposer(message, value):
    message.proposer.kind = getattr(pb, f"PROPOSER_KIND_{value['kind']}")
    fill(message.proposer, {name: given for name, given in value.items() if name != "kind"})


# Parameters that are not simple fields of the same name.
WRITERS = {
    "engine": lambda message, value: setattr(message, "engine_order", getattr(pb, f"ENGINE_ORDER_{value}")),
    "sampler_order": lambda message, value: message.sampler_order.extend(getattr(pb, f"SAMPLER_KIND_{name.upper()}") for name in value),
    "logit_bias": lambda message, value: [message.logit_bias.add(token_id=token, bias=bias) for token, bias in value],
    "sequence_bias": lambda message, value: [message.sequence_bias.add(token_ids=tokens, bias=bias) for tokens, bias in value],
    "token_ban_ranges": lambda message, value: [
        message.token_ban_ranges.add(token_ids=tokens, start=start, length=length) for tokens, start, length in value],
    "no_repeat_ngram": lambda message, value: fill(message.no_repeat_ngram, value),
    "length_penalty": lambda message, value: fill(message.length_penalty, dict(zip(("start", "factor"), value))),
    "repetition_detection": lambda message, value: fill(message.repetition_detection, value),
    "proposer": write_proposer, "draft_length": lambda message, value: fill(message.draft_length, value),
    "thinking_budget": write_thinking, "stop_token_sequences": words("stop_token_sequences"),
    "bad_words": words("bad_words"), "dry_sequence_breakers": words("dry_sequence_breakers"),
    "kgw": mark("kgw"), "synthid": mark("synthid"), "gumbel": mark("gumbel"), "acceptance": write_acceptance,
}


def mask_bytes(mask):
    """docs/structured-output.md, Masks of grammars."""
    whole = np.zeros(-(-len(mask) // 32) * 32, bool)
    whole[: len(mask)] = mask
    return np.packbits(whole, bitorder="little").tobytes()


def state_message(state):
    return pb.SamplerState(**{STATE[name]: value for name, value in state.items()})


def status(answer):
    """The status by name. Also checks that there is a message if and only if the status is not OK."""
    assert bool(answer.message) == (answer.status != pb.ROW_STATUS_OK), answer
    return pb.RowStatus.Name(answer.status).removeprefix("ROW_STATUS_")


def finish(answer):
    return pb.FinishReason.Name(answer.finish_reason).removeprefix("FINISH_REASON_")


def state(answer):
    """The sampler state, with f64 in hexadecimal so that a difference in the last bit is seen."""
    given = answer.sampler_state
    return {name: getattr(given, field).hex() for name, field in STATE.items() if given.HasField(field)}


def bits(numbers):
    return np.array(numbers, np.float32).view(np.uint32).tolist()


def told(token):
    """The content of a Token message; None for absent fields."""
    report = token.report
    logprob, rank = (getattr(token, name) if token.HasField(name) else None for name in ("logprob", "rank"))
    entropies = (getattr(report, name).hex() if report.HasField(name) else None for name in ("entropy", "raw_entropy"))
    return dict(
        token=token.token_id, logprob=None if logprob is None else bits(logprob), rank=rank, top=list(token.top_token_ids),
        top_logprobs=bits(token.top_logprobs), logprobs=bits(token.requested_logprobs), rounded=token.rounded_logprobs,
        support=report.support_size if token.HasField("report") else None, survivors=list(report.surviving_token_ids),
        **dict(zip(("entropy", "raw_entropy"), entropies)), why_not=[why(each) for each in report.why_not])


# The content of a Token message if nothing was requested.
NOTHING = told(pb.Token())


def why(told):
    """The content of a WhyNot message."""
    return dict(
        token=told.token_id, by=pb.RemovedBy.Name(told.removed_by).removeprefix("REMOVED_BY_"),
        sampler=pb.SamplerKind.Name(told.sampler).removeprefix("SAMPLER_KIND_"), raw=bits(told.raw_logit),
        adjusted=bits(told.adjusted_logit), probability=bits(told.probability), rank=told.rank)


def check_opened(step, result):
    """Checks that a step opened all of its sequences, at the expected positions (OpenResult)."""
    said = [(answer.sequence_id, answer.seed, answer.position, pb.OpenStatus.Name(answer.status)) for answer in result.open]
    assert said == [
        (given.sequence_id, given.params.seed, len(given.output_token_ids), "OPEN_STATUS_OK") for given in step.open], result.open


class Connection:
    def __init__(self, server):
        self.channel = grpc.insecure_channel(server.uds, OPTIONS)
        self.sample = self.channel.unary_unary(
            "/croupier.v1.Sampler/Sample", request_serializer=pb.SampleRequest.SerializeToString,
            response_deserializer=pb.SampleResponse.FromString)
        self.decode = self.channel.stream_stream(
            "/croupier.v1.Sampler/Decode", request_serializer=pb.DecodeRequest.SerializeToString,
            response_deserializer=pb.DecodeResponse.FromString)


class Stream:
    """A stream of f32 rows that does one step after another."""

    def __init__(self, connection, vocab, eos, draft_vocabulary=()):
        self.requests = queue.Queue()
        config = pb.StreamConfig(vocab_size=vocab, logits_dtype=pb.LOGITS_DTYPE_F32, eos_token_ids=eos, draft_vocabulary=draft_vocabulary)
        self.requests.put(pb.DecodeRequest(config=config))
        self.answers, self.steps = connection.decode(iter(self.requests.get, None)), 0
        next(self.answers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.requests.put(None)

    def step(self, step, rows):
        """Sends a step with whole rows, or with `List`s."""
        whole = [row for row in rows if isinstance(row, np.ndarray)]
        for row in rows[len(whole):]:
            row.put(step.top_n)
        step.inline.data = b"".join(row.tobytes() for row in whole)
        # Any number other than the previous one.
        self.steps = step.step_id = self.steps * 6364136223846793005 + 1442695040888963407 & LOW_64
        self.requests.put(pb.DecodeRequest(step=step))
        result = next(self.answers).step
        is_whole = len(result.open) == len(step.open) and len(result.work) == len(step.work)
        assert is_whole and result.step_id == step.step_id and not result.in_slots and not result.HasField("refusal")
        return result
