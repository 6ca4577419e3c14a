"""Rows of which only the largest logits are sent, through the Python client."""

import asyncio

import numpy as np
import pytest

import croupier
from croupier import pb

VOCAB = 1000


def logits(text, position):
    return np.random.default_rng((text, position)).normal(size=VOCAB).astype(np.float32) * 3


def params(seed):
    return {"seed": seed, "temperature": 0.9, "top_k": 40, "top_p": 0.95, "presence_penalty": 0.3}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_tokens_are_those_of_whole_rows(server, dtype):
    with croupier.connect(server.uds, VOCAB, dtype=dtype, data_path="inline") as stream:
        whole, thin = ([stream.open(prompt=[1], **params(text)) for text in (1, 2)] for _ in range(2))
        for position in range(20):
            rows = np.stack([logits(text, position) for text in (1, 2)])
            assert stream.sample(rows, whole) == stream.sample(stream.top_n(rows, 128), thin)


def test_what_reaches_beyond_is_refused_or_marked(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, other = stream.open(seed=1), stream.open(seed=1)
        row = logits(1, 0)
        with pytest.raises(croupier.RowError, match="send the whole row"):
            stream.sample(stream.top_n(row, 10), [text])
        assert stream.sample(row, [text]) == stream.sample(row, [other])
        marked = stream.step(stream.top_n(logits(1, 1), 10, beyond="mark"), [text]).work[0]
        assert marked.truncated and marked.status == pb.ROW_STATUS_OK


def test_whole_and_listed_rows_go_together(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(**params(text)) for text in (1, 2, 3, 4)]
        rows = np.stack([logits(1, 0), logits(2, 0)])
        one, two = stream.sample(rows, texts[:2])
        # The same seeds and rows, with the second row listed.
        same = [stream.open(**params(text)) for text in (1, 2)]
        result = stream.step((rows[:1], stream.top_n(rows[1:], 100)), same)
        assert [work.tokens[0].token_id for work in result.work] == [one, two]


def test_rows_of_one_s_own_may_differ_in_length():
    top_n = croupier.TopN([[3, 1], [7]], [[1.0, 0.5], [2.0]], [0.0, -np.inf], beyond=["refuse", "mark"])
    rows = pb.Step.FromString(top_n.encode("f32")).top_n
    assert list(rows.counts) == [2, 1] and list(rows.token_ids) == [3, 1, 7]
    assert rows.logits == np.array([1.0, 0.5, 2.0], "<f4").tobytes()
    assert list(rows.beyond) == [pb.BEYOND_TOP_N_REFUSE, pb.BEYOND_TOP_N_MARK]
    with pytest.raises(ValueError, match="differ in shape"):
        croupier.TopN([[1, 2]], [[1.0]], [0.0]).encode("f32")
    with pytest.raises(ValueError, match="entries for 1 rows"):
        croupier.TopN([[1]], [[1.0]], []).encode("f32")


def test_asyncio_takes_them_too(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text, other = stream.open(**params(5)), stream.open(**params(5))
            row = logits(5, 0)
            return await stream.sample(row, [text]), await stream.sample(stream.top_n(row, 64), [other])

    whole, thin = asyncio.run(run())
    assert whole == thin


def test_rows_of_another_width_and_bits_are_told(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        with pytest.raises(ValueError, match=rf"must be \(rows, {VOCAB}\)"):
            stream.top_n(np.zeros((1, VOCAB // 2), np.float32), 8)
        # 5.0 and -4.0 in bf16.
        bits = np.array([[0x40A0, 0xC080]], np.uint16)
        assert pb.Step.FromString(croupier.TopN([[1, 2]], bits, [0.0]).encode("f32")).top_n.logits == np.array([5, -4], "<f4").tobytes()
        two = stream.top_n(np.zeros((2, VOCAB), np.float32).tobytes(), 1)
        assert len(two.ids) == 2


def test_a_list_that_is_none_is_told(server):
    given = {"ids": [[1, 2]], "logits": [[1.0, 0.5]], "rest_logsumexp": [0.0]}
    for name, wrong, said in (("ids", [1, 2], r"ids of a TopN are \[1, 2\], must be a row for each"), ("ids", None, "ids of a TopN are None"),
                              ("logits", [1.0, 0.5], r"logits of a TopN are \[1.0, 0.5\], must be a row for each"),
                              ("beyond", None, "beyond is NoneType, must be a list of choices"), ("beyond", {}, "beyond is dict, must be a list of choices")):
        with pytest.raises(TypeError, match=said):
            croupier.TopN(**{**given, name: wrong})
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1)
        with pytest.raises(TypeError, match="beyond is NoneType, must be a list of choices"):
            stream.top_n(logits(1, 0), 5, None)
        with pytest.raises(TypeError, match="rest_logsumexp is 'much', must be a number for each row"):
            stream.sample(croupier.TopN(**{**given, "rest_logsumexp": "much"}), [text])
        # Whatever the program has set in numpy, what is too large for a float32 is for the server to report.
        with np.errstate(all="raise"), pytest.raises(croupier.RowError, match="rest_logsumexp"):
            stream.sample(croupier.TopN(**{**given, "rest_logsumexp": 1e300}), [text])
        assert stream.sample(logits(1, 0), [text])
