"""Samplers, penalties and DRY, compared with llama.cpp's own: the probability of every token, row by row and, for samplers that learn,
position by position. Known differences are in test_llama_cpp_differences.py.

Two kinds of rows are compared less strictly. llama.cpp does not define an order of equal logits, so only the sorted probabilities of
rows with equal logits are compared. And it sums in f32, so a threshold may be within a rounding error of a token: other survivors than
here are allowed if llama.cpp keeps the survivors from here in a row whose logits are a millionth away. The number of such rows is
printed.
"""

import functools
import itertools
import json
import os

import croupier
import libllama
import libllama_vocabulary
import numpy as np
import pytest

VOCAB, LONG, TEXT = 64, 1100, 48
# Number of rows of each shape.
ROWS = int(os.environ.get("CROUPIER_LLAMA_ROWS", "50"))
# The largest number of tokens that may be requested.
ASKED = 1024
TOLERANCE, NEARBY = 2e-6, 1e-6
# A logit of adaptive-p changes up to 33 times (10 / 0.3) as much as a probability, which llama.cpp computes in f32.
STEEP = 33 * 2**-22

pytestmark = pytest.mark.skipif(bool(libllama.why_not()), reason=str(libllama.why_not()))


@functools.cache
def library():
    return libllama.Library(os.environ["CROUPIER_LIBLLAMA"])


SHAPES = {
    "plain": lambda random: random.normal(0, random.uniform(0.5, 4), VOCAB),
    "peaked": lambda random: random.normal(0, 2, VOCAB) + 8 * (np.arange(VOCAB) == random.integers(VOCAB)),
    "flat": lambda random: random.normal(0, 0.05, VOCAB),
    "ties": lambda random: np.round(random.normal(0, 3, VOCAB)) / 2,
    "masked": lambda random: np.where(random.random(VOCAB) < 0.3, -np.inf, random.normal(0, 2, VOCAB)),
    "long": lambda random: random.normal(0, 3, LONG),
}
# If a token is masked, llama.cpp's typical-p adds 0 * ln 0. Its dynamic temperature and mirostat count such tokens.
NO_MASKS = {"masked"}
BREAKERS = [[3], [9, 4]]
BIASES, BANNED = {1: 2.5, 5: -3.0, 8: 4.0}, [2, 11]
ALL_BIASES = BIASES | dict.fromkeys(BANNED, -np.inf)
PENALTIES = {"penalty_last_n": 20, "repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.4}
DRY = {"dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 40,
       "dry_sequence_breakers": [{"token_ids": breaker} for breaker in BREAKERS]}


def penalties(vocab):
    return ("penalties", vocab, 20, 1.3, 0.2, 0.4)


# llama.cpp's samplers in its order, as a function of the vocabulary size; the equivalent parameters here; and the shapes to leave out.
CHAINS = {
    "top-k": (lambda v: [("top_k", 10)], {"top_k": 10}, ()),
    "top-p": (lambda v: [("top_p", 0.8, 1)], {"top_p": 0.8}, ()),
    "min-p": (lambda v: [("min_p", 0.1, 1)], {"min_p": 0.1}, ()),
    "top-k 1": (lambda v: [("top_k", 1)], {"top_k": 1}, ()),
    "top-p 0": (lambda v: [("top_p", 0.0, 1)], {"top_p": 0.0}, ()),
    "min-p 1": (lambda v: [("min_p", 1.0, 1)], {"min_p": 1.0}, ()),
    "typical 0": (lambda v: [("typical", 0.0, 1)], {"typical_p": 0.0}, NO_MASKS),
    "typical": (lambda v: [("typical", 0.7, 1)], {"typical_p": 0.7}, NO_MASKS),
    "top-n-sigma": (lambda v: [("top_n_sigma", 1.2)], {"top_n_sigma": 1.2}, ()),
    "xtc": (lambda v: [("xtc", 1.0, 0.1, 1, 5)], {"xtc_probability": 1.0, "xtc_threshold": 0.1}, ()),
    "xtc off, temperature": (
        lambda v: [("xtc", 0.0, 0.1, 1, 5), ("temp", 0.7)], {"xtc_probability": 0.0, "xtc_threshold": 0.1, "temperature": 0.7}, ()),
    "xtc above a half, temperature": (
        lambda v: [("xtc", 1.0, 0.51, 1, 5), ("temp", 0.7)], {"xtc_probability": 1.0, "xtc_threshold": 0.51, "temperature": 0.7}, ()),
    "temperature": (lambda v: [("temp_ext", 0.6, 0.0, 1.0)], {"temperature": 0.6}, ()),
    "greedy": (lambda v: [("temp_ext", 0.0, 0.0, 1.0)], {"temperature": 0.0}, ()),
    "dynamic temperature": (
        lambda v: [("temp_ext", 1.0, 0.5, 1.5)], {"dynatemp_low": 0.5, "dynatemp_high": 1.5, "dynatemp_exponent": 1.5}, NO_MASKS),
    "dynamic temperature from 0": (
        lambda v: [("temp_ext", 0.5, 0.75, 1.0)], {"dynatemp_low": 0.0, "dynatemp_high": 1.25, "dynatemp_exponent": 1.0}, NO_MASKS),
    "logit bias": (lambda v: [("logit_bias", v, ALL_BIASES)], {"logit_bias": BIASES, "banned_token_ids": BANNED}, ()),
    "penalties": (lambda v: [penalties(v)], PENALTIES, ()),
    "repetition penalty": (lambda v: [("penalties", v, 7, 1.8, 0.0, 0.0)], {"penalty_last_n": 7, "repetition_penalty": 1.8}, ()),
    "dry": (lambda v: [("dry", 0.8, 1.75, 2, 40, BREAKERS)], DRY, ()),
    "dry, allowed length 1, no breakers": (
        lambda v: [("dry", 0.4, 1.1, 1, 40, [])],
        {"dry_multiplier": 0.4, "dry_base": 1.1, "dry_allowed_length": 1, "dry_penalty_last_n": 40}, ()),
    "dry, allowed length 4": (
        lambda v: [("dry", 2.0, 2.0, 4, 64, [[3]])],
        {"dry_multiplier": 2.0, "dry_base": 2.0, "dry_allowed_length": 4, "dry_penalty_last_n": 64,
         "dry_sequence_breakers": [{"token_ids": [3]}]}, ()),
    "penalties, dry": (lambda v: [penalties(v), ("dry", 0.8, 1.75, 2, 40, BREAKERS)], PENALTIES | DRY, ()),
    "its defaults": (
        lambda v: [penalties(v), ("top_n_sigma", -1.0), ("top_k", 40), ("typical", 1.0, 0),
                   ("top_p", 0.95, 0), ("min_p", 0.05, 0), ("xtc", 0.0, 0.1, 0, 5), ("temp_ext", 0.8, 0.0, 1.0)],
        PENALTIES | {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8}, ()),
    "top-k, typical, top-p, min-p, xtc, temperature": (
        lambda v: [("top_k", 30), ("typical", 0.95, 1), ("top_p", 0.9, 1), ("min_p", 0.03, 1), ("xtc", 1.0, 0.15, 1, 5),
                   ("temp_ext", 1.3, 0.0, 1.0)],
        {"top_k": 30, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.03, "xtc_probability": 1.0, "xtc_threshold": 0.15,
         "temperature": 1.3}, ()),
    "bias, penalties, dry, top-n-sigma, min-p, dynamic temperature": (
        lambda v: [("logit_bias", v, ALL_BIASES), penalties(v), ("dry", 0.8, 1.75, 2, 40, BREAKERS), ("top_n_sigma", 2.0),
                   ("min_p", 0.01, 1), ("temp_ext", 0.9, 0.4, 0.7)],
        PENALTIES | DRY | {"logit_bias": BIASES, "banned_token_ids": BANNED, "top_n_sigma": 2.0, "min_p": 0.01, "dynatemp_low": 0.5,
                           "dynatemp_high": 1.3, "dynatemp_exponent": 0.7}, ()),
    "min-keep": (
        lambda v: [("typical", 0.5, 3), ("top_p", 0.3, 3), ("min_p", 0.6, 3), ("xtc", 1.0, 0.1, 3, 5)],
        {"typical_p": 0.5, "top_p": 0.3, "min_p": 0.6, "xtc_probability": 1.0, "xtc_threshold": 0.1, "min_keep": 3}, NO_MASKS),
}


def plain(row):
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def asked(vocab):
    return {"mode": croupier.pb.LOGPROBS_MODE_PROCESSED, "token_ids": range(min(vocab, ASKED))}


def logits(shape, random):
    return SHAPES[shape](random).astype(np.float32)


def text(random):
    """A text that repeats itself."""
    part = random.integers(0, 12, TEXT // 3)
    return np.concatenate([part, random.integers(0, 12, TEXT - 2 * len(part)), part]).tolist()


def given(text):
    """The options with which a text is opened."""
    return {"prompt": text[:TEXT // 2], "output": text[TEXT // 2:]}


def in_order(probabilities, row):
    """The probabilities for comparison: sorted if the row has equal logits, otherwise as they are."""
    finite = row[np.isfinite(row)]
    return np.sort(probabilities) if len(np.unique(finite)) < len(finite) else probabilities


def differs(got, chain, row):
    """The distance of the probabilities from those that a chain gives a row; None if other tokens survive because of rounding alone."""
    def expected(row):
        # A chain may remember the rows it has seen.
        with chain.clone() as fresh:
            return in_order(fresh.probabilities(row)[0][:ASKED], row)

    got, wanted, random = in_order(got, row), expected(row), np.random.default_rng(1)
    if ((got > 0) == (wanted > 0)).all():
        return np.abs(got - wanted).max()
    nearby = (row * (1 + NEARBY * random.uniform(-1, 1, len(row))) for _ in range(50))
    assert any(((got > 0) == (expected(other.astype(np.float32)) > 0)).all() for other in nearby), (row, got, wanted)
    return None


@pytest.mark.parametrize("name", CHAINS)
def test_probabilities_are_those_of_llama_cpp(server, name):
    make, fields, left_out = CHAINS[name]
    random, farthest, roundings, changed, total = np.random.default_rng(7), 0.0, 0, 0, 0
    for shape in (shape for shape in SHAPES if shape not in left_out):
        # Each row has a text, and all are in one step.
        rows = np.stack([logits(shape, random) for _ in range(ROWS)])
        texts = [text(random) for _ in range(ROWS)]
        vocab = rows.shape[1]
        with croupier.connect(server.uds, vocab, max_rows=ROWS) as stream:
            opened = [stream.open(engine_order="llama_cpp", logprobs=asked(vocab), **given(text), **fields) for text in texts]
            results = stream.step(rows, opened).work
        for row, accepted, work in zip(rows, texts, results, strict=True):
            got = np.exp(np.array(work.tokens[0].requested_logprobs, np.float64))
            with libllama.Chain(library(), *make(vocab)) as chain:
                chain.accept(accepted)
                difference = differs(got, chain, row)
                changed += not np.allclose(chain.probabilities(row)[0], plain(row))
            farthest, roundings, total = max(farthest, difference or 0.0), roundings + (difference is None), total + 1
            assert difference is None or difference < TOLERANCE, (shape, row, difference)
    print(f"{name}: {total} rows, {changed} changed, largest difference {farthest:.1e}, {roundings} on the other side of a threshold")
    assert changed > total // 4, "the samplers hardly ever did anything"
    assert roundings <= total // 100


def test_a_text_that_is_drawn_here_is_what_llama_cpp_looks_back_on(server):
    make, fields, _ = CHAINS["bias, penalties, dry, top-n-sigma, min-p, dynamic temperature"]
    random, farthest, texts = np.random.default_rng(10), 0.0, 20
    # A few rows that are used repeatedly, so that texts repeat themselves.
    pool = random.normal(0, 3, (3, texts, VOCAB)).astype(np.float32)
    chains = [libllama.Chain(library(), *make(VOCAB)) for _ in range(texts)]
    with croupier.connect(server.uds, VOCAB, max_rows=texts) as stream:
        opened = [stream.open(engine_order="llama_cpp", logprobs=asked(VOCAB), seed=seed, **fields) for seed in range(texts)]
        for position in range(2 * TEXT):
            rows = pool[position % len(pool)]
            results = stream.step(rows, opened).work
            for row, chain, work in zip(rows, chains, results, strict=True):
                difference = differs(np.exp(np.array(work.tokens[0].requested_logprobs, np.float64)), chain, row)
                assert difference is not None and difference < TOLERANCE, (position, difference)
                farthest = max(farthest, difference)
                chain.accept([work.tokens[0].token_id])
    for chain in chains:
        chain.close()
    print(f"drawn here: {2 * TEXT * texts} positions, largest difference {farthest:.1e}")


# Samplers that learn from the drawn token. llama.cpp's draw it themselves. It is scored here, so that both sides learn the same.
LEARNING = {
    "mirostat 1": (lambda v: [("temp", 1.2), ("mirostat", v, 3, 3.0, 0.1, 100)],
                   {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.1, "temperature": 1.2}, ("plain", "peaked")),
    "mirostat 1, learning fast": (lambda v: [("temp", 1.0), ("mirostat", v, 4, 2.0, 0.5, 100)],
                                  {"mirostat": 1, "mirostat_tau": 2.0, "mirostat_eta": 0.5}, ("plain", "long")),
    "mirostat 2": (lambda v: [("temp", 1.0), ("mirostat_v2", 5, 3.0, 0.1)],
                   {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.1}, ("plain", "peaked", "flat", "masked")),
    "mirostat 2, learning fast": (lambda v: [("temp", 0.8), ("mirostat_v2", 6, 1.5, 0.6)],
                                  {"mirostat": 2, "mirostat_tau": 1.5, "mirostat_eta": 0.6, "temperature": 0.8},
                                  ("plain", "masked", "long")),
    "adaptive-p": (lambda v: [("adaptive_p", 0.4, 0.9, 7)], {"adaptive_target": 0.4, "adaptive_decay": 0.9},
                   ("plain", "peaked", "flat", "masked")),
    "min-p, temperature, adaptive-p": (
        lambda v: [("min_p", 0.02, 1), ("temp_ext", 0.8, 0.0, 1.0), ("adaptive_p", 0.55, 0.5, 8)],
        {"min_p": 0.02, "temperature": 0.8, "adaptive_target": 0.55, "adaptive_decay": 0.5}, ("plain", "peaked", "masked", "long")),
}


def drawn(make, rows):
    """The tokens that llama.cpp draws at each row of a text, with its chain's state before each."""
    tokens, chains = [], []
    with libllama.Chain(library(), *make(rows.shape[1])) as chain:
        for row in rows:
            chains.append(chain.clone())
            tokens.append(chain.probabilities(row)[1])
            chain.accept(tokens[-1:])
    return tokens, chains


@pytest.mark.parametrize("name", LEARNING)
def test_what_samplers_learn_is_what_llama_cpp_learns(server, name):
    make, fields, shapes = LEARNING[name]
    random, farthest, roundings, changed, total = np.random.default_rng(8), 0.0, 0, 0, 0
    for shape in shapes:
        for _ in range(10):
            rows = np.stack([logits(shape, random) for _ in range(60)])
            tokens, chains = drawn(make, rows)
            with croupier.connect(server.uds, rows.shape[1], max_rows=60) as stream:
                text = stream.open(engine_order="llama_cpp", **fields)
                score = croupier.pb.ScoreWork(token_ids=tokens, logprobs=croupier.pb.LogprobsParams(**asked(rows.shape[1])))
                [work] = stream.step(rows, [croupier.pb.Work(sequence_id=text.id, score=score)]).work
            assert len(work.tokens) == len(rows), work
            for row, token, chain in zip(rows, work.tokens, chains, strict=True):
                got = np.exp(np.array(token.requested_logprobs, np.float64))
                with chain:
                    difference = differs(got, chain, row)
                if difference is None:
                    # From here on, the two have drawn from different distributions.
                    roundings += 1
                    break
                farthest, total = max(farthest, difference), total + 1
                assert difference < (STEEP if "adaptive_target" in fields else TOLERANCE), (shape, row, difference)
                changed += not np.allclose(got, plain(row)[:ASKED])
    print(f"{name}: {total} positions, {changed} changed, largest difference {farthest:.1e}, {roundings} on the other side of a threshold")
    assert changed > total // 4, "the samplers hardly ever did anything"
    assert roundings <= 1


def with_texts(tmp_path):
    """llama.cpp's vocabulary of texts of up to three letters behind two tokens that end a text, and the server's file of the same."""
    ends, letters = ["<end>", "<turn>"], ["".join(t) for n in (1, 2, 3) for t in itertools.product("abcd", repeat=n)]
    texts = ends + letters[:VOCAB - len(ends)]
    libllama_vocabulary.write(tmp_path / "vocabulary.gguf", texts, eos=0, eot=1)
    # Tokens that end a text have no visible text.
    (tmp_path / "vocabulary.json").write_text(json.dumps([None, None, *texts[len(ends):]]))
    return libllama_vocabulary.load(library(), tmp_path / "vocabulary.gguf"), tmp_path / "vocabulary.json"


def test_dry_breaks_at_texts_as_in_llama_cpp(serve, tmp_path):
    vocabulary, file = with_texts(tmp_path)
    server, random, broken, changed = serve(f"--vocabulary={file}"), np.random.default_rng(10), 0, 0
    fields = {"engine_order": "llama_cpp", "dry_multiplier": 0.8, "dry_base": 1.3, "dry_penalty_last_n": 60}
    for breakers in ["a"], ["c", "d"], []:
        # A few tokens, most of which have no breaker.
        some = random.choice(np.arange(2, VOCAB), (4 * ROWS, 8))
        texts = [row[random.choice(8, 30)].tolist() for row in some]
        texts = [text + text[(at := random.integers(20)):at + 9] for text in texts]
        rows = random.normal(0, 2, (len(texts), VOCAB)).astype(np.float32)
        with croupier.connect(server.uds, VOCAB, max_rows=len(rows)) as stream:
            opened = [stream.open(prompt=text, logprobs=asked(VOCAB), dry_sequence_breaker_texts=breakers, **fields) for text in texts]
            results = stream.step(rows, opened).work
        for text, row, work in zip(texts, rows, results, strict=True):
            got = np.exp(np.array(work.tokens[0].requested_logprobs, np.float64))
            with libllama.Chain(library(), ("dry_at_texts", vocabulary, 0.8, 1.3, 2, 60, breakers)) as chain, \
                    libllama.Chain(library(), ("dry_at_texts", vocabulary, 0.8, 1.3, 2, 60, [])) as without:
                for each in chain, without:
                    each.accept(text)
                difference = differs(got, chain, row)
                broken += not np.allclose(chain.probabilities(row)[0], without.probabilities(row)[0])
            assert difference is not None and difference < TOLERANCE, (breakers, text, difference)
            changed += not np.allclose(got, plain(row))
    print(f"dry at texts: {12 * ROWS} rows, {changed} changed, {broken} otherwise without breakers")
    assert changed > 3 * ROWS and broken > ROWS


def test_infill_is_that_of_llama_cpp(serve, tmp_path):
    vocabulary, file = with_texts(tmp_path)
    server, random = serve(f"--vocabulary={file}"), np.random.default_rng(9)
    rows = np.stack([random.normal(0, random.uniform(2, 5), VOCAB) for _ in range(4 * ROWS)]).astype(np.float32)
    with croupier.connect(server.uds, VOCAB, max_rows=len(rows), eos_token_ids=[1, 0]) as stream:
        fields = {"engine_order": "llama_cpp", "top_k": 20, "top_p": 0.95, "infill": True}
        results = stream.step(rows, [stream.open(logprobs=asked(VOCAB), **fields) for _ in rows]).work
    farthest, ended, several, roundings = 0.0, 0, 0, 0
    for row, work in zip(rows, results, strict=True):
        got = np.exp(np.array(work.tokens[0].requested_logprobs, np.float64))
        with libllama.Chain(library(), ("top_k", 20), ("top_p", 0.95, 1), ("infill", vocabulary)) as chain:
            difference = differs(got, chain, row)
        assert difference is None or difference < TOLERANCE, (row, difference)
        farthest, roundings = max(farthest, difference or 0.0), roundings + (difference is None)
        ended, several = ended + (got[:2].sum() > 0.999), several + ((got > 0).sum() > 1)
    print(f"infill: {len(rows)} rows, {ended} end, {several} with several tokens, largest difference {farthest:.1e}, "
          f"{roundings} on the other side of a threshold")
    assert min(ended, several, len(rows) - ended) > len(rows) // 10
    assert roundings <= len(rows) // 100
