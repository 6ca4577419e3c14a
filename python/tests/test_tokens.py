"""Tokens read directly from bytes are those that protobuf reads. Other messages are left to protobuf."""

import random

import pytest

from croupier import pb
from croupier._tokens import tokens_of


def answer(ids, **fields):
    works = [pb.WorkResult(status=pb.ROW_STATUS_OK, tokens=[pb.Token(token_id=one)]) for one in ids]
    return pb.DecodeResponse(step=pb.StepResult(step_id=fields.pop("step_id", 5), work=works, **fields))


@pytest.mark.parametrize("largest", [127, 128, 16_383, 16_384, 128_255, (1 << 20) - 1])
def test_usual_answers_are_read(largest):
    draw = random.Random(largest)
    for count in (1, 2, 64, 300):
        ids = [draw.randint(1, largest) for _ in range(count - 1)] + [largest]
        for step_id in (1, 200, 1 << 63):
            reply = answer(ids, step_id=step_id).SerializeToString()
            assert tokens_of(reply, count) == ids
            assert tokens_of(reply, count + 1) is None


def test_what_is_not_usual_is_left_to_protobuf():
    ids = [3, 400, 70_000]

    def with_work(**fields):
        one = answer(ids)
        one.step.work[1].MergeFrom(pb.WorkResult(**fields))
        return one

    others = [
        with_work(finish_reason=pb.FINISH_REASON_EOS), with_work(status=pb.ROW_STATUS_NAN_LOGITS), with_work(message="x"),
        with_work(tokens=[pb.Token(token_id=1)]), with_work(sampler_state=pb.SamplerState(mirostat_mu=1.0)), with_work(truncated=True),
        with_work(advised_draft_length=0), answer([3, 0, 5]), answer(ids, open=[pb.OpenResult(status=1)]),
        answer(ids, refusal=pb.Refusal(retry_after_ms=1)), pb.DecodeResponse(ready=pb.StreamReady()), pb.DecodeResponse(),
    ]
    named = answer(ids)
    named.step.work[2].tokens[0].logprob = -1.0
    for one in [*others, named]:
        assert tokens_of(one.SerializeToString(), 3) is None, one


def test_no_change_of_a_byte_is_read_otherwise_than_by_protobuf():
    reply = answer([3, 400, 70_000]).SerializeToString()
    draw = random.Random(1)
    read = 0
    for _ in range(20_000):
        changed = bytearray(reply)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(changed))
            if draw.random() < 0.2:
                del changed[at]
            else:
                changed[at] = draw.choice((draw.randrange(256), changed[at] ^ 1 << draw.randrange(8)))
        ids = tokens_of(bytes(changed), 3)
        if ids is None:
            continue
        try:
            result = pb.DecodeResponse.FromString(bytes(changed)).step
        except Exception:
            # The client parses the message with protobuf first, which refuses it.
            continue
        read += 1
        assert [work.tokens[0].token_id for work in result.work] == ids
        assert all(work.status == pb.ROW_STATUS_OK and not work.finish_reason for work in result.work)
    assert read > 100, "some changes are of tokens"
