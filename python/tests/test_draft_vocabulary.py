"""Draft models that know only some of the tokens: the text is that of a model whose other logits are -infinity."""

import asyncio

import croupier
import numpy as np
import pytest
from croupier import AsyncSpeculation, Speculation
from test_speculative import TREE, VOCAB, draft_model, target

#: Not in the order of ids.
KNOWN = [7, 0, 4, 10, 11, 2, 5]
FIELDS = [dict(temperature=0.0), dict(), dict(top_k=4, presence_penalty=0.5, logit_bias={7: 1.0, 1: 5.0}), dict(min_p=0.1, banned_token_ids=[4])]


def short(pairs):
    return draft_model(pairs)[:, KNOWN]


def whole(pairs):
    rows = np.full((len(pairs), VOCAB), -np.inf, np.float32)
    rows[:, KNOWN] = short(pairs)
    return rows


def texts_of(stream):
    return [stream.open(seed=seed, prompt=[seed, 1], max_tokens=40, **fields) for seed, fields in enumerate(FIELDS)]


def speculated(stream, model, how):
    """The drafts of all rounds, and the texts."""
    texts, speculation, drawn = texts_of(stream), Speculation(stream), []
    while going := [text for text in texts if text.finish_reason is None]:
        drafts = how(speculation, going, model)
        drawn.append([(draft.token_ids, draft.parents) for draft in drafts])
        speculation.verify(drafts, target(drafts))
    return drawn, [text.tokens for text in texts]


def chain(speculation, texts, model):
    return speculation.chain(texts, model, 3)


def tree(speculation, texts, model):
    return speculation.tree(texts, model, TREE)


@pytest.mark.parametrize("path", ["inline", "shared_memory"])
@pytest.mark.parametrize("how", [chain, tree])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_short_rows_give_the_text_of_whole_rows(server, path, how, dtype):
    with croupier.connect(server.uds, VOCAB, data_path=path, dtype=dtype) as stream:
        expected = speculated(stream, whole, how)
    with croupier.connect(server.uds, VOCAB, data_path=path, dtype=dtype, draft_vocabulary=np.array(KNOWN)) as stream:
        assert speculated(stream, short, how) == expected
    drawn, _ = expected
    assert {token for drafts in drawn for tokens, _ in drafts for token in tokens} <= set(KNOWN)


def test_asyncio_has_it_too(server):
    async def run():
        async with croupier.aio.connect(server.uds, VOCAB, draft_vocabulary=KNOWN) as stream:
            texts, speculation = texts_of(stream), AsyncSpeculation(stream)
            while going := [text for text in texts if text.finish_reason is None]:
                drafts = await speculation.chain(going, short, 3)
                await speculation.verify(drafts, target(drafts))
            return [text.tokens for text in texts]

    with croupier.connect(server.uds, VOCAB) as stream:
        assert speculated(stream, whole, chain)[1] == asyncio.run(run())


def draft_works(texts):
    return [croupier.pb.Work(sequence_id=text.id, draft=croupier.pb.DraftWork(restart=True)) for text in texts]


@pytest.mark.parametrize("path", ["inline", "auto", "shared_memory"])
def test_rows_may_be_written_in_place(server, path):
    with croupier.connect(server.uds, VOCAB, data_path=path, max_rows=4, draft_vocabulary=KNOWN) as stream:
        texts = texts_of(stream)
        logits = short([(text, []) for text in texts])
        expected = stream.step(logits, draft_works(texts))
        rows = stream.rows(4, draft=True)
        assert rows.array.shape == (4, len(KNOWN))
        rows.array[:] = logits
        assert stream.step(rows, draft_works(texts)).work == expected.work
        wrong = stream.rows(4)
        wrong.write(np.zeros((4, VOCAB), np.float32))
        with pytest.raises(ValueError, match=r"these rows have 12 columns, must have 7; take rows for draft work with rows\(count, draft=True\)"):
            stream.step(wrong, draft_works(texts))
        # They are still good for what they are.
        assert len(stream.sample(wrong, texts)) == 4
        assert stream.rows(2).array.shape == (2, VOCAB)


def test_more_rows_than_a_slot_has_are_split(server):
    with (croupier.connect(server.uds, VOCAB, data_path="auto", max_rows=2, draft_vocabulary=KNOWN) as few,
          croupier.connect(server.uds, VOCAB, data_path="inline", draft_vocabulary=KNOWN) as inline):
        results = []
        for stream in few, inline:
            texts = texts_of(stream) + texts_of(stream)
            results.append(stream.step(short([(text, []) for text in texts]), draft_works(texts)).work)
        assert results[0] == results[1] and len(results[0]) == 8


def test_rows_without_an_answer_are_sent_again(serve):
    server = serve()
    with croupier.connect(server.uds, VOCAB, data_path="shared_memory", draft_vocabulary=KNOWN) as stream:
        texts = texts_of(stream)
        stream.sample(np.zeros((4, VOCAB), np.float32), texts)
        logits = short([(text, []) for text in texts])
        expected = [work.tokens[0].token_id for work in stream.step(logits, draft_works(texts)).work]
        rows = stream.rows(4, draft=True)
        rows.write(logits)
        server.kill()
        server.start()
        assert [work.tokens[0].token_id for work in stream.step(rows, draft_works(texts)).work] == expected


def test_lists_name_tokens_of_the_text(server):
    results = []
    for options in {"draft_vocabulary": KNOWN}, {}:
        with croupier.connect(server.uds, VOCAB, **options) as stream:
            texts = [stream.open(seed=seed, top_k=2) for seed in range(3)]
            rows = stream.top_n(whole([(text, []) for text in texts]), 4)
            # Of both models in one step, since each list says which tokens it has.
            results.append(stream.step(rows, [*draft_works(texts[:2]), texts[2]]).work)
    assert results[0] == results[1] and all(work.status == croupier.pb.ROW_STATUS_OK for work in results[0])


def test_a_mistake_is_told_before_anything_is_sent(server):
    with croupier.connect(server.uds, VOCAB, draft_vocabulary=KNOWN) as stream:
        texts = texts_of(stream)
        with pytest.raises(ValueError, match=r"work\[1\] is other work, unlike work\[0\]; with a draft_vocabulary draft work"):
            stream.step(np.zeros((4, len(KNOWN))), [*draft_works(texts[:1]), *texts[1:]])
        with pytest.raises(ValueError, match=r"work\[2\] is draft work, unlike work\[0\]"):
            stream.step(np.zeros((4, VOCAB)), [*texts[:2], *draft_works(texts[2:])])
        with pytest.raises(ValueError, match=r"logits have the shape \(4, 12\), must be \(rows, 7\)"):
            stream.step(np.zeros((4, VOCAB)), draft_works(texts))
        assert len(stream.sample(np.zeros((4, VOCAB)), texts)) == 4
    for error, vocabulary, more in [
        (r"draft_vocabulary is empty, must have the token of each column", [], {}),
        (r"draft_vocabulary\[1\] is -1", [0, -1], {}),
        (r"draft_vocabulary cannot be used with vocab_shards", KNOWN, {"vocab_shards": [6, 6]}),
    ]:
        with pytest.raises(ValueError, match=error):
            croupier.connect(server.uds, VOCAB, draft_vocabulary=vocabulary, **more)
    # The offsets of a table d2t, as they are.
    with pytest.raises(croupier.CroupierError, match=r"config.draft_vocabulary\[1\]: is 0, as draft_vocabulary\[0\] is; .*d2t"):
        croupier.connect(server.uds, VOCAB, draft_vocabulary=[0, 0, 1, 1])
