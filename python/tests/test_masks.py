"""Masks of grammars: in every form in which engines fill them, next to texts without masks, through a killed server, on every path."""

import asyncio

import numpy as np
import pytest

import croupier
from croupier import pb
from croupier._masks import masked
from test_client import PATHS, VOCAB, logits, params

WORDS = -(-VOCAB // 32)


def allowed(*tokens):
    """The mask as bools."""
    mask = np.zeros(VOCAB, bool)
    mask[list(tokens)] = True
    return mask


def words(mask):
    """The mask as words, with ones after the vocabulary, as engines leave them."""
    bits = np.ones(WORDS * 32, bool)
    bits[:VOCAB] = mask
    return np.packbits(bits, bitorder="little").view("<u4")


FORMS = {
    "bool": lambda masks: np.stack(masks),
    "uint32": lambda masks: np.stack([words(mask) for mask in masks]),
    "int32, as XGrammar has it": lambda masks: np.stack([words(mask) for mask in masks]).view(np.int32),
    "longer, for a padded vocabulary": lambda masks: np.pad(np.stack([words(mask) for mask in masks]), ((0, 0), (0, 5))),
    "big endian": lambda masks: np.stack([words(mask) for mask in masks]).astype(">u4"),
    "a list": lambda masks: [words(mask) for mask in masks],
    "not contiguous": lambda masks: np.stack([words(mask) for mask in masks]).repeat(2, axis=1)[:, ::2],
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_removes_the_same_tokens(server, path, form):
    masks = [allowed(7, 9), allowed(VOCAB - 1)]
    with croupier.connect(server.uds, VOCAB, data_path=path) as stream:
        texts = [stream.open(**params(text)) for text in (1, 2)]
        drawn = [stream.sample(np.zeros((2, VOCAB), "f4"), texts, token_masks=FORMS[form](masks)) for _ in range(20)]
    assert {first for first, _ in drawn} == {7, 9}
    assert {last for _, last in drawn} == {VOCAB - 1}


def test_a_mask_that_removes_nothing_is_not_sent(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(**params(text)) for text in (1, 2, 3)]
        full = words(np.ones(VOCAB, bool))
        works = stream.masked(texts, [full, None, words(allowed(5))])
        assert [len(work.token_masks) for work in works] == [0, 0, 4 * WORDS]
        step = stream.step(np.zeros((3, VOCAB), "f4"), works)
        assert step.work[2].tokens[0].token_id == 5
    plain = []
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(**params(text)) for text in (1, 2, 3)]
        plain = stream.sample(np.zeros((3, VOCAB), "f4"), texts)
    assert [work.tokens[0].token_id for work in step.work][:2] == plain[:2]


def test_a_text_goes_on_behind_masks_when_its_server_is_killed(serve):
    server = serve()
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(**params(3))
        for position in range(12):
            if position == 6:
                server.kill()
                server.start()
            even = np.arange(VOCAB) % 2 == position % 2
            stream.sample(logits(3, position), [text], token_masks=even[np.newaxis])
        assert [token % 2 for token in text.tokens] == [position % 2 for position in range(12)]


def test_asyncio_takes_masks_too(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB) as stream:
            text = stream.open(**params(1))
            return await stream.sample(np.zeros((1, VOCAB), "f4"), [text], token_masks=words(allowed(4))[np.newaxis])

    assert asyncio.run(run()) == [4]


def test_a_mask_that_leaves_nothing_fails_its_row_alone(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(**params(text)) for text in (1, 2)]
        with pytest.raises(croupier.RowError) as failed:
            stream.sample(np.zeros((2, VOCAB), "f4"), texts, token_masks=[allowed(), None])
        assert failed.value.failures[texts[0].id].status == "ALL_MASKED"
        assert (len(texts[0].tokens), len(texts[1].tokens)) == (0, 1)


@pytest.mark.parametrize("masks, error, said", [
    (np.zeros((1, WORDS), "u4"), ValueError, "1 rows for 2 sequences"),
    (np.zeros((2, WORDS - 1), "u4"), ValueError, f"at least {WORDS}"),
    (np.zeros((2, VOCAB - 1), bool), ValueError, f"at least {VOCAB}"),
    (np.zeros((2, WORDS), "i8"), TypeError, "int32 or uint32"),
    (np.zeros((2, VOCAB), "f4"), TypeError, "int32 or uint32"),
    (np.ones((2, VOCAB), "i4"), ValueError, rf"token_masks\[0\] has {VOCAB} words for a vocabulary of {VOCAB}, .* give mask.astype\(bool\)"),
    (np.ones((2, VOCAB), "u4"), ValueError, "has the bits of 32 tokens"),
    ([None, allowed(5).tobytes()], ValueError, rf"token_masks\[1\] has {VOCAB} bytes .* has the bits of 8 tokens.* numpy.frombuffer\(mask, bool\)"),
    (np.zeros(WORDS, "u4"), ValueError, r"must be \(rows, words"),
    ([np.zeros((1, WORDS), "u4"), None], ValueError, r"token_masks\[0\]"),
])
def test_mistakes_are_told_before_anything_is_sent(server, masks, error, said):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = [stream.open(**params(text)) for text in (1, 2)]
        with pytest.raises(error, match=said):
            stream.sample(np.zeros((2, VOCAB), "f4"), texts, token_masks=masks)
        assert stream.sample(np.zeros((2, VOCAB), "f4"), texts)


def test_a_text_of_another_stream_is_refused(server):
    with croupier.connect(server.uds, VOCAB) as stream, croupier.connect(server.uds, VOCAB) as other:
        with pytest.raises(ValueError, match="not open on this stream"):
            stream.masked([other.open(**params(1))], [None])


@pytest.mark.parametrize("vocab, padded", [(1, 32), (8, 32), (31, 64), (32, 64), (100, 256), (50_257, 65_536)])
def test_masks_for_a_padded_vocabulary_are_taken(vocab, padded):
    class Text:
        id = 3

    of = np.zeros(padded // 32, "u4")
    of[0] = 1
    for mask in (of, of.tobytes()):
        [work] = masked([Text()], [mask], vocab)
        assert len(work.token_masks) == (-(-vocab // 32) * 4 if vocab > 1 else 0)


def test_the_words_are_those_of_the_wire():
    class Text:
        id = 3

    work, = masked([Text()], [np.array([0b101, 0x80000000], "u4")], 64)
    assert work == pb.Work(sequence_id=3, sample=pb.SampleWork(), token_masks=bytes([5, 0, 0, 0, 0, 0, 0, 0x80]))
