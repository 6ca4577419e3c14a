"""The helpers for speculative decoding: if drafts are certain, texts are those of a worker without drafts."""

import asyncio
import re
import types
import zlib

import croupier
import numpy as np
import pytest
from croupier import Draft, SparseDistribution, Speculation, aio, speculative

VOCAB = 12
TOKENS = 60
TREE = [-1, -1, 0, 0, 1, 2]


def model(context, sharp=4.0):
    """A model that looks at the last two tokens. With `sharp` 2 instead of 4 it is the draft model."""
    row = np.random.default_rng(zlib.crc32(bytes(context[-2:]))).normal(size=VOCAB)
    return (row * sharp).astype(np.float32)


def draft_model(pairs):
    return np.stack([model([*text.prompt, *text.tokens, *path], 2.0) for text, path in pairs])


def target(drafts):
    """The rows for verifying these drafts: after the text, then after each draft token with its predecessors."""
    rows = []
    for draft in drafts:
        text = [*draft.sequence.prompt, *draft.sequence.tokens]
        for index in range(-1, len(draft.token_ids)):
            rows.append(model([*text, *(draft.token_ids[i] for i in draft.path(index))]))
    return np.stack(rows)


def test_a_draft_model_may_give_tensors(server):
    torch = pytest.importorskip("torch")

    def as_tensors(kind, needs):
        return lambda pairs: torch.tensor(draft_model(pairs)).to(kind).requires_grad_(needs)

    drawn = set()
    # Numbers that bf16 can represent, so that all rows are the same.
    exact = lambda pairs: torch.tensor(draft_model(pairs)).bfloat16().float().numpy()  # noqa: E731
    for given in exact, as_tensors(torch.bfloat16, False), as_tensors(torch.bfloat16, True):
        with croupier.connect(server.uds, VOCAB) as stream:
            speculation = Speculation(stream)
            [text] = [stream.open(seed=3, prompt=[3, 1])]
            stream.sample(model([3, 1]), [text])
            drafts = speculation.chain([text], given, 3) + speculation.tree([text], given, TREE)
            drawn.add(tuple(token for draft in drafts for token in draft.token_ids))
            probabilities = torch.full((1, VOCAB), 1 / VOCAB).bfloat16().requires_grad_()
            work = Draft(text, [5], distribution=probabilities).work()
            assert np.frombuffer(work.verify.dense.probs, "<f4").tolist() == probabilities.float()[0].tolist()
    assert len(drawn) == 1


def opened(stream, **fields):
    return [stream.open(seed=seed, prompt=[seed, 1], temperature=temperature, max_tokens=TOKENS, **fields)
            for seed, temperature in enumerate((0.0, 0.7, 1.0))]


def plain(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts = opened(stream)
        for _ in range(TOKENS):
            stream.sample(np.stack([model([*text.prompt, *text.tokens]) for text in texts]), texts)
        return [text.tokens for text in texts]


def going(texts):
    return [text for text in texts if text.finish_reason is None]


def check(verified):
    for each in verified:
        accepted = [each.draft.token_ids[i] for i in each.accepted_path]
        more = [] if each.last_token == "accepted" else each.token_ids[-1:]
        assert each.token_ids == accepted + more == each.sequence.tokens[-len(each.token_ids) :]
        assert each.lossless
        assert [each.draft.path(i)[-1] for i in each.accepted_path] == each.accepted_path


def test_drafts_end_where_a_text_may_be_no_longer(serve):
    server = serve("--max-history-tokens", "12")
    with croupier.connect(server.uds, VOCAB) as stream:
        speculation = Speculation(stream)
        near, other = (stream.open(prompt=[3] * tokens, seed=tokens) for tokens in (9, 2))
        emitted = []
        while near.finish_reason is None and len(near.tokens) < 3:
            drafts = speculation.chain([near, other], draft_model, 4)
            assert len(drafts[0].token_ids) == 2 - len(near.tokens) and len(drafts[1].token_ids) == min(4, 9 - len(other.tokens))
            emitted.append(speculation.verify(drafts, target(drafts))[0].token_ids)
        assert len(near.tokens) == 3 == sum(map(len, emitted))
        # A longer draft made by hand is refused, with a hint.
        [last] = [stream.open(prompt=[3] * 9, seed=1)]
        with pytest.raises(croupier.SpeculationError, match="a shorter draft may fit"):
            speculation.verify([Draft(last, [5] * 3)], np.zeros((4, VOCAB), np.float32))


@pytest.mark.parametrize("form", ["array", "lists"])
def test_a_draft_model_may_use_its_memory_again(server, form):
    rows = np.empty((3, VOCAB), np.float32)
    memory = rows if form == "array" else rows.tolist()

    def reuses(pairs):
        for at, row in enumerate(draft_model(pairs)):
            memory[at][:] = row
        return memory

    drawn = []
    for draft in draft_model, reuses:
        with croupier.connect(server.uds, VOCAB) as stream:
            texts = opened(stream)
            # The rows of siblings are not drawn from one after another.
            drawn.append([draft.token_ids for draft in Speculation(stream).tree(texts, draft, [-1, 0, -1, 0, 2, 1, -1])])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("kind", ["NGRAM", "SUFFIX"])
def test_proposed_in_the_sidecar_not_one_token_changes(server, kind):
    fields = dict(proposer=croupier.pb.ProposerParams(kind=getattr(croupier.pb, f"PROPOSER_KIND_{kind}")))
    with croupier.connect(server.uds, VOCAB) as stream:
        texts, speculation, accepted, steps = opened(stream, **fields), Speculation(stream), 0, 0
        while now := going(texts):
            drafts = speculation.proposed(now)
            verified = speculation.verify(drafts, target(drafts))
            check(verified)
            accepted += sum(len(each.accepted_path) for each in verified)
            steps += 1
        assert accepted > 0 and steps <= TOKENS
        assert [text.tokens for text in texts] == plain(server)
        assert [text.finish_reason for text in texts] == ["max_tokens"] * 3


def test_a_proposal_is_of_the_text_as_it_was(server):
    """After tokens that the helper was not told about, nothing is proposed. Once it is told, it proposes what follows them."""
    fields = dict(proposer=croupier.pb.ProposerParams(kind=croupier.pb.PROPOSER_KIND_NGRAM, min_match=1))
    row = lambda: np.where(np.arange(VOCAB) == 5, 60, 0).astype(np.float32)[None]  # noqa: E731
    with croupier.connect(server.uds, VOCAB) as stream:
        text, speculation = stream.open(seed=1, prompt=[5, 6, 7, 8, 9, 5, 6, 7], temperature=0.0, **fields), Speculation(stream)
        speculation.verify([Draft(text)], row())
        [draft] = speculation.proposed([text])
        assert draft.token_ids[:2] == [6, 7]
        stream.sample(row(), [text])
        assert speculation.proposed([text]) == [Draft(text)]
        result = stream.step(row(), [text])
        speculation.told([text], result)
        [draft] = speculation.proposed([text])
        assert text.tokens == [5, 5, 5] and draft.token_ids == list(result.work[0].proposed_token_ids) != []
        with pytest.raises(ValueError, match="result has 1 works, must have one for each of 2 texts"):
            speculation.told([text, text], result)


def test_a_chain_of_the_worker_s_own_tokens_is_certain(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts, speculation = opened(stream), Speculation(stream)
        while now := going(texts):
            # The draft is right for the greedy text and a guess for the others. Now and then it is empty.
            drafts = [Draft(text, [int(model([*text.prompt, *text.tokens]).argmax())][: len(text.tokens) % 3]) for text in now]
            check(speculation.verify(drafts, target(drafts)))
        assert [text.tokens for text in texts] == plain(server)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_drafts_of_a_model(server, shape):
    def run():
        with croupier.connect(server.uds, VOCAB) as stream:
            texts, speculation, accepted = opened(stream), Speculation(stream), 0
            while now := going(texts):
                drafts = speculation.chain(now, draft_model) if shape == "chain" else speculation.tree(now, draft_model, TREE)
                assert all(len(draft.token_ids) <= 6 for draft in drafts)
                verified = speculation.verify(drafts, target(drafts), measure=True)
                check(verified)
                accepted += sum(len(each.accepted_path) for each in verified)
                assert all(len(each.result.verify.tests) >= len(each.accepted_path) for each in verified)
            # Draft and target model have the same most likely token, so the greedy text's drafts are right.
            assert accepted > TOKENS
            return [text.tokens for text in texts]

    first = run()
    assert first == run()
    # At temperature 0 there is no chance.
    assert first[0] == plain(server)[0]


def test_asyncio_gives_the_same(server):
    async def slow(pairs):
        await asyncio.sleep(0)
        return draft_model(pairs)

    async def run(chosen, shape):
        async with aio.connect(server.uds, VOCAB) as stream:
            texts, speculation = opened(stream), speculative.AsyncSpeculation(stream)
            while now := going(texts):
                make = speculation.tree(now, chosen, TREE) if shape == "tree" else speculation.chain(now, chosen, 3)
                drafts = await make
                check(await speculation.verify(drafts, target(drafts)))
            return [text.tokens for text in texts]

    def same(shape):
        with croupier.connect(server.uds, VOCAB) as stream:
            texts, speculation = opened(stream), Speculation(stream)
            while now := going(texts):
                drafts = speculation.tree(now, draft_model, TREE) if shape == "tree" else speculation.chain(now, draft_model, 3)
                speculation.verify(drafts, target(drafts))
            return [text.tokens for text in texts]

    for shape in ("chain", "tree"):
        assert asyncio.run(run(slow, shape)) == asyncio.run(run(draft_model, shape)) == same(shape)


def test_the_advice_shortens_drafts(server):
    """The draft model is never right: after a while nothing is drafted, except for an attempt now and then."""
    def wrong(pairs):
        return -draft_model(pairs)

    fields = dict(draft_length=croupier.pb.DraftLengthParams(draft_cost=0.3, verify_cost=0.1))
    with croupier.connect(server.uds, VOCAB) as stream:
        texts, speculation, lengths = opened(stream, **fields), Speculation(stream), []
        while now := going(texts):
            drafts = speculation.chain(now, wrong, at_most=6)
            verified = speculation.verify(drafts, target(drafts))
            lengths.append(sum(len(draft.token_ids) for draft in drafts) / len(drafts))
            on = [each for each in verified if each.sequence.finish_reason is None]
            assert all(speculation.length(each.sequence, 6) == min(6, each.result.advised_draft_length) for each in on)
        assert lengths[0] == 6 and sum(lengths[-10:]) <= 10


def test_probabilities_that_the_worker_drew_from(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, speculation = stream.open(seed=3, max_tokens=TOKENS), Speculation(stream)
        while text.finish_reason is None:
            probs = np.exp(model(text.tokens).astype(np.float64))
            probs /= probs.sum()
            token = int(np.random.default_rng(len(text.tokens)).choice(VOCAB, p=probs))
            draft = Draft(text, [token], distribution=probs[None])
            [verified] = speculation.verify([draft], target([draft]))
            # The token was drawn from the target's own distribution.
            assert verified.accepted_path == [0]


@pytest.mark.parametrize("name, vocab", [("float16", 151_936), ("bf16", 60), ("bfloat16", 60)])
def test_probabilities_go_as_they_are_given(server, name, vocab):
    """In a narrow format, equal probabilities do not sum to 1. The server knows the tolerance of each format."""
    flat = np.full((1, vocab), 1 / vocab, np.float32)
    if name == "bf16":
        given = ((flat.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
        wide = (given.astype(np.uint32) << 16).view(np.float32)
    elif name == "bfloat16":
        given = flat.astype(pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16)
        wide = given.astype(np.float32)
    else:
        given = flat.astype(name)
        wide = given.astype(np.float32)
    assert abs(wide.sum(dtype=np.float64) - 1) > 3e-3
    rows = np.zeros((2, vocab), np.float32)
    with croupier.connect(server.uds, vocab) as stream:
        text, speculation = stream.open(seed=1), Speculation(stream)
        # Target and draft are equal.
        [verified] = speculation.verify([Draft(text, [7], distribution=given)], rows)
        assert verified.accepted_path == [0]
        with pytest.raises(croupier.SpeculationError, match=r"sum to \d\.\d+, not to 1"):
            speculation.verify([Draft(text, [7], distribution=wide)], rows)


PARENTS = {"chain": None, "tree": [-1, -1, 0, 1]}


def drawn(text, shape):
    """Draft tokens that the worker draws, each from a few candidates, with these candidates and their probabilities."""
    chance = np.random.default_rng((text.params.seed, len(text.tokens)))
    draft = Draft(text, [0] * 4, PARENTS[shape])
    tokens, ids, probs = [], [], []
    for index in range(4):
        path = [tokens[i] for i in draft.path(index)[:-1]]
        row = model([*text.prompt, *text.tokens, *path], 2.0).astype(np.float64)
        # The number of candidates varies, and they are not in token order. A sibling is drawn without the token of the one before it.
        few = [token for token in np.argsort(-row)[: 3 + index % 2 + 1] if shape == "chain" or index != 1 or token != tokens[0]]
        weights = np.exp(row[few])
        ids.append([int(token) for token in few])
        probs.append(weights / weights.sum())
        tokens.append(int(chance.choice(few, p=probs[-1])))
    return tokens, ids, probs


def dense(ids, probs):
    whole = np.zeros((len(ids), VOCAB), np.float32)
    for row, tokens, own in zip(whole, ids, probs):
        row[tokens] = own
    return whole


GIVEN = {"dense": dense, "lists": lambda ids, probs: SparseDistribution(ids, [row.tolist() for row in probs]),
         "arrays": lambda ids, probs: SparseDistribution([np.array(row, np.int64) for row in ids], probs)}


def speculated(server, shape, form):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts, speculation, accepted = opened(stream), Speculation(stream), 0
        while now := going(texts):
            drafts = []
            for text in now:
                tokens, ids, probs = drawn(text, shape)
                drafts.append(Draft(text, tokens, PARENTS[shape], GIVEN[form](ids, probs)))
            verified = speculation.verify(drafts, target(drafts))
            check(verified)
            accepted += sum(len(each.accepted_path) for each in verified)
        assert accepted > TOKENS / 2
        return [text.tokens for text in texts]


async def speculated_later(server, shape):
    async with aio.connect(server.uds, VOCAB) as stream:
        texts, speculation = opened(stream), speculative.AsyncSpeculation(stream)
        while now := going(texts):
            drafts = []
            for text in now:
                tokens, ids, probs = drawn(text, shape)
                drafts.append(Draft(text, tokens, PARENTS[shape], GIVEN["lists"](ids, probs)))
            await speculation.verify(drafts, target(drafts))
        return [text.tokens for text in texts]


@pytest.mark.parametrize("shape", PARENTS)
def test_a_sparse_distribution_gives_the_tokens_of_the_whole_one(server, shape):
    whole = speculated(server, shape, "dense")
    assert whole != plain(server)
    assert speculated(server, shape, "lists") == speculated(server, shape, "arrays") == asyncio.run(speculated_later(server, shape)) == whole


def test_a_sparse_distribution_is_small(server):
    with croupier.connect(server.uds, 128_256) as stream:
        ids, probs = np.arange(150).reshape(3, 50), np.full((3, 50), 0.02)
        work = Draft(stream.open(), [1, 51, 101], distribution=SparseDistribution(ids, probs)).work()
        assert list(work.verify.sparse.counts) == [50] * 3 and list(work.verify.sparse.token_ids) == list(range(150))
        assert work.verify.sparse.probs[0] == np.float32(0.02) and work.ByteSize() < 3 * 400


@pytest.mark.parametrize("ids, probs, said", [
    ([[1, 2]], [[0.5, 0.5]], "1 rows of ids and 1 of probabilities, must have 2 of both, one for each draft token"),
    ([[1], [2]], [[1.0]], "2 rows of ids and 1 of probabilities"),
    ([1, 2], [1.0, 1.0], re.escape("distribution.ids[0] has the shape () and probabilities[0] (), must be one-dimensional and equally long")),
    ([[1], [2, 3]], [[1.0], [1.0]], re.escape("distribution.ids[1] has the shape (2,) and probabilities[1] (1,)")),
    ([[1], [2, 0, 0]], [[1.0], [1.0, 0.0, 0.0]], re.escape("distribution.ids[1] has token 0 twice; leave out tokens with")),
    ([[1], [-1]], [[1.0], [1.0]], re.escape("distribution.ids[1] has -1, must be in 0 .. vocab_size - 1")),
    ([[1], [2.5]], [[1.0], [1.0]], re.escape("distribution.ids[1] are float64, must be whole numbers")),
    ([[1], [2]], [[1.0], [None]], re.escape("distribution.probabilities[1] is object with NoneType among them, must be real numbers")),
    (types.SimpleNamespace(__cuda_array_interface__={}), [[1.0], [1.0]], "distribution is on a GPU"),
    ([[1], [2]], [[1.0], types.SimpleNamespace(__cuda_array_interface__={})], "distribution is on a GPU"),
])
def test_what_is_wrong_with_a_sparse_distribution_is_told_before_it_is_sent(server, ids, probs, said):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(seed=1)
        draft = Draft(text, [1, 2], distribution=SparseDistribution(ids, probs))
        with pytest.raises((ValueError, TypeError), match=said):
            Speculation(stream).verify([draft], target([draft]))
        assert not text.tokens and not stream._session.steps


@pytest.mark.parametrize("ids, probs, said", [
    ([[1], [2]], [[0.5], [1.0]], r"sum to 0\.500000, not to 1"), ([[1], [2]], [[np.nan], [1.0]], "not a finite number of at least 0"),
    ([[1], [3]], [[1.0], [1.0]], "the draft token 2 has draft probability 0"), ([[1], [2, VOCAB]], [[1.0], [0.5, 0.5]], "sparse.token_ids"),
])
def test_what_is_wrong_with_its_numbers_the_server_says(server, ids, probs, said):
    with croupier.connect(server.uds, VOCAB) as stream:
        text, other = stream.open(seed=1, temperature=1.0, logit_bias={1: 50.0}), stream.open(seed=2)
        drafts = [Draft(text, [1, 2], distribution=SparseDistribution(ids, probs)), Draft(other)]
        with pytest.raises(speculative.SpeculationError, match=said) as error:
            Speculation(stream).verify(drafts, target(drafts))
        assert error.value.failures[text.id].status == "INVALID_WORK" and len(other.tokens) == 1


def test_kept_drafts_are_made_anew_after_the_server_was_killed(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts, speculation, killed = opened(stream), Speculation(stream), 0
        while now := going(texts):
            drafts = speculation.chain(now, draft_model)
            if len(texts[0].tokens) > 10 and not killed:
                server.kill()
                server.start()
                with pytest.raises(speculative.SpeculationError) as failed:
                    speculation.verify(drafts, target(drafts))
                assert set(failed.value.failures) == {text.id for text in now}
                assert failed.value.verified == [None] * len(now)
                killed = len(texts[0].tokens)
                continue
            check(speculation.verify(drafts, target(drafts)))
        assert killed
        with croupier.connect(server.uds, VOCAB) as other:
            again, speculation = opened(other), Speculation(other)
            while now := going(again):
                drafts = speculation.chain(now, draft_model)
                speculation.verify(drafts, target(drafts))
            assert [text.tokens for text in again] == [text.tokens for text in texts]


def test_one_bad_row_leaves_the_others(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        texts, speculation = opened(stream), Speculation(stream)
        drafts = [Draft(text, [1, 2]) for text in texts]
        logits = target(drafts)
        logits[3:6] = np.nan
        with pytest.raises(speculative.SpeculationError) as failed:
            speculation.verify(drafts, logits)
        assert list(failed.value.failures) == [texts[1].id] and "NaN" in str(failed.value)
        good = [each.token_ids for each in failed.value.verified if each]
        assert good == [texts[0].tokens, texts[2].tokens] and not texts[1].tokens
        with pytest.raises(ValueError, match="distribution is 'kepd'"):
            speculation.verify([Draft(texts[0], [1], distribution="kepd")], target(drafts[:1]))


def test_a_draft_s_distribution_has_a_row_for_each_token(server):
    """The transposed array has as many numbers, and the text would be verified against the wrong ones."""
    with croupier.connect(server.uds, VOCAB) as stream:
        [text, *_], speculation = opened(stream), Speculation(stream)
        probs = np.full((2, VOCAB), 1 / VOCAB)
        rows = target([Draft(text, [1, 2])])
        for wrong, shape in ((probs.T, f"({VOCAB}, 2)"), (probs[:1], f"(1, {VOCAB})"), (probs[None], f"(1, 2, {VOCAB})"), (None, "()")):
            with pytest.raises(ValueError, match=f"distribution has the shape {re.escape(shape)}, must be \\(2, vocab_size\\)"):
                speculation.verify([Draft(text, [1, 2], distribution=wrong)], rows)
        gpu = types.SimpleNamespace(__cuda_array_interface__={"shape": (2, VOCAB)})
        with pytest.raises(ValueError, match=r"distribution is on a GPU; .* distribution.cpu\(\)"):
            speculation.verify([Draft(text, [1, 2], distribution=gpu)], rows)
        with pytest.raises(TypeError, match="distribution is object with NoneType among them, must be real numbers"):
            speculation.verify([Draft(text, [1, 2], distribution=[[None] * VOCAB] * 2)], rows)
        assert not text.tokens
        for given in probs, probs.tolist(), np.asfortranarray(probs), probs.astype(">f4"), probs.astype("<f4").tobytes():
            text, before = stream.open(seed=1, prompt=[1]), text
            assert speculation.verify([Draft(text, [1, 2], distribution=given)], rows)
            assert before is not text and (not before.tokens or text.tokens == before.tokens)
        # A single token may have a single row.
        assert speculation.verify([Draft(text, [1], distribution=probs[0])], rows[:2])


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_the_first_of_a_drafted_model_are_kept_ones(server, shape):
    """As many tokens are accepted as of a draft of that length, and the text is the same."""
    def run(drafted, verified):
        with croupier.connect(server.uds, VOCAB) as stream:
            [_, text, *_], speculation = opened(stream), Speculation(stream)
            drafts = speculation.chain([text], draft_model, drafted) if shape == "chain" else speculation.tree([text], draft_model, TREE[:drafted])
            first = [draft.first(verified) for draft in drafts]
            assert [draft.distribution for draft in first] == ["kept" if verified else "deterministic"]
            assert first[0].parents == (None if shape == "chain" else TREE[:verified]) and first[0].token_ids == drafts[0].token_ids[:verified]
            return speculation.verify(first, target(first))[0].token_ids

    for count in (0, 1, 2):
        assert run(4, count) == run(count or 1, count)


def test_the_first_of_a_draft_have_their_own_rows(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        text = opened(stream)[0]
        probs = np.arange(3 * VOCAB, dtype=np.float32).reshape(3, VOCAB)
        for given in probs, probs.tolist(), probs.tobytes(), np.asfortranarray(probs):
            draft = Draft(text, [1, 2, 3], distribution=given)
            assert draft.first(2).work().verify.dense.probs == probs[:2].tobytes()
            assert draft.first(3) is draft is draft.first(9) and draft.first(0).work().verify.HasField("deterministic")
        sparse = croupier.SparseDistribution([[1, 2], [3], [4, 5]], [[0.5, 0.5], [1.0], [0.25, 0.75]])
        found = Draft(text, [1, 3, 4], [-1, 0, 0], sparse).first(2)
        assert (found.parents, list(found.work().verify.sparse.counts), list(found.work().verify.sparse.token_ids)) == ([-1, 0], [2, 1], [1, 2, 3])
        for wrong, error, said in ((-1, ValueError, "count is -1, must be at least 0"), (1.5, TypeError, "count is 1.5, must be a whole number")):
            with pytest.raises(error, match=said):
                draft.first(wrong)
        with pytest.raises(ValueError, match="distribution has the shape"):
            Draft(text, [1, 2], distribution=probs[:2].T).first(1)


def test_the_shape_of_a_draft_is_told_before_anything_is_drawn(server):
    with croupier.connect(server.uds, VOCAB) as stream:
        [text, *_], speculation = opened(stream), Speculation(stream)

        def never(pairs):
            raise AssertionError("the model is not asked")

        for parents, said in (([-1, 3], r"parents\[1\] is 3, must be in -1 ..= 0"), ([-2], r"parents\[0\] is -2, must be in -1 ..= -1"),
                              (["a"], r"parents\[0\] is 'a', must be a whole number")):
            with pytest.raises((ValueError, TypeError), match=said):
                speculation.tree([text], never, parents)
        with pytest.raises(TypeError, match="at_most is '2', must be a whole number"):
            speculation.chain([text], never, "2")
