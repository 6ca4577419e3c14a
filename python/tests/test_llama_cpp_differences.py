"""The differences from llama.cpp that docs/engines.md lists, each with the smallest row that shows it: what remains there, and here."""

import json
import os

import croupier
import libllama
import libllama_vocabulary
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(bool(libllama.why_not()), reason=str(libllama.why_not()))
MASKED = -np.inf
ROW = [2.0, 1.9, 1.8, 1.7, -1.0, -2.0, -3.0, -4.0]
# The largest logit is not the most typical one.
FLAT = [1.4, 0.3, 0.2, 0.1, 0.0, -0.1, -0.2, -0.3, -0.4, -0.5]


@pytest.fixture(scope="module")
def library():
    return libllama.Library(os.environ["CROUPIER_LIBLLAMA"])


@pytest.fixture
def here(server):
    """The probabilities of a row's tokens here, rounded."""
    def probabilities(row, prompt=(), output=(), **fields):
        logprobs = {"mode": croupier.pb.LOGPROBS_MODE_PROCESSED, "token_ids": range(len(row))}
        with croupier.connect(server.uds, len(row)) as stream:
            text = stream.open(engine_order="llama_cpp", logprobs=logprobs, prompt=prompt, output=output, **fields)
            [work] = stream.step(np.array([row], np.float32), [text]).work
        return np.exp(np.array(work.tokens[0].requested_logprobs, np.float64)).round(5).tolist()

    return probabilities


@pytest.fixture
def there(library):
    """The same in llama.cpp, after a text."""
    def probabilities(row, *samplers, text=()):
        with libllama.Chain(library, *samplers) as chain:
            chain.accept(text)
            return chain.probabilities(np.array(row, np.float32))[0].round(5).tolist()

    return probabilities


def test_typical_of_a_row_with_a_masked_token_is_not_a_number_there(here, there):
    typical, p = ("typical", 0.4, 1), {"typical_p": 0.4}
    assert here(FLAT, **p) == there(FLAT, typical)
    assert here([*FLAT, MASKED], **p) == [*here(FLAT, **p), 0]
    # Therefore no token is nearer to the entropy than another, and the largest ones come first.
    assert there([*FLAT, MASKED], typical) == there([*FLAT, MASKED], ("top_p", 0.4, 1)) != here([*FLAT, MASKED], **p)
    # In llama.cpp, top-n-sigma masks the tokens that it removes.
    far = [*FLAT, -9.0]
    assert here(far, top_n_sigma=2.0, **p) == here([*FLAT, MASKED], **p) != there(far, ("top_n_sigma", 2.0), typical)


def test_dynamic_temperature_counts_masked_tokens_there(here, there):
    dynamic, fields = ("temp_ext", 1.0, 0.5, 1.0), {"dynatemp_low": 0.5, "dynatemp_high": 1.5}
    assert here(ROW, **fields) == there(ROW, dynamic)
    assert here([*ROW, MASKED], **fields) == [*there(ROW, dynamic), 0] != there([*ROW, MASKED], dynamic)
    left = [*there(ROW[:4], dynamic), 0, 0, 0, 0]
    assert here(ROW, top_n_sigma=0.5, **fields) == left != there(ROW, ("top_n_sigma", 0.5), dynamic)
    # There is no difference if a later sampler removes them, as llama.cpp's default min-p does.
    assert here(ROW, top_n_sigma=0.5, min_p=0.05, **fields) == left == there(ROW, ("top_n_sigma", 0.5), ("min_p", 0.05, 1), dynamic)


def test_mirostat_1_there_counts_masked_tokens_and_keeps_one_where_it_would_keep_more_than_2_31(here, there):
    def mirostat(vocab, tau):
        return ("mirostat", vocab, 1, tau, 0.1, 100)

    masked = ROW + 92 * [MASKED]
    fields = {"mirostat": 1, "mirostat_tau": 1.0}
    assert here(masked, **fields) == there(ROW, mirostat(8, 1.0)) + 92 * [0] != there(masked, mirostat(100, 1.0))
    # The estimate for equal logits is unbounded, but an int is not.
    assert here([0] * 6, mirostat=1, mirostat_tau=3.0) == 6 * [0.16667]
    assert sorted(there([0] * 6, mirostat(6, 3.0))) == [0, 0, 0, 0, 0, 1]


def test_mirostat_2_keeps_one_of_the_equally_largest_there(here, there):
    assert here([0] * 4, mirostat=2, mirostat_tau=0.5) == 4 * [0.25]
    assert sorted(there([0] * 4, ("mirostat_v2", 1, 0.5, 0.1))) == [0, 0, 0, 1]


def test_top_k_and_top_n_sigma_know_no_min_keep_there(here, there):
    row, alone = [3.0, -2.0, -2.1, -2.2], [1, 0, 0, 0]
    two = [0.99331, 0.00669, 0, 0]
    assert there(row, ("top_k", 1)) == alone and here(row, top_k=1, min_keep=2) == two
    assert there(row, ("top_n_sigma", 1.0)) == alone and here(row, top_n_sigma=1.0, min_keep=2) == two


def test_xtc_takes_the_greedy_choice_there(here, there):
    row = [1.0, 0.9, -2.0]
    assert here(row, xtc_probability=1.0, temperature=0.0) == [1, 0, 0]
    assert there(row, ("xtc", 1.0, 0.1, 1, 1), ("temp_ext", 0.0, 0.0, 1.0)) == [0, 1, 0]


def test_frequency_and_presence_penalty_may_leave_out_the_prompt_here(here, there):
    row, text, penalties = [1.0, 1.0, 1.0], [0, 0, 1], ("penalties", 3, 8, 1.0, 1.0, 0.5)
    fields = {"penalty_last_n": 8, "frequency_penalty": 1.0, "presence_penalty": 0.5}
    assert here(row, prompt=text, **fields) == there(row, penalties, text=text) != 3 * [0.33333]
    assert here(row, prompt=text, penalties_count_prompt=False, **fields) == 3 * [0.33333]


@pytest.mark.parametrize("last_n", [0, -1])
def test_no_window_is_no_penalty_there(here, there, last_n):
    row, text = [1.0, 1.0, 1.0], [0, 0, 1]
    whole = there(row, ("penalties", 3, 3, 1.5, 0.0, 0.0), text=text)
    assert here(row, output=text, repetition_penalty=1.5) == whole != 3 * [0.33333]
    assert there(row, ("penalties", 3, last_n, 1.5, 0.0, 0.0), text=text) == 3 * [0.33333]


@pytest.mark.parametrize("breakers, text, last_n", [
    # llama.cpp takes the breaker that begins last, Croupier the one that ends last.
    ([[1, 2, 3], [2]], [4, 1, 2, 3, 0, 4, 1, 2, 3], 64),
    # The first two of the window's five tokens end a breaker that begins before the window: llama.cpp does not find it.
    ([[3, 7, 7]], [3, 7, 7, 7, 7, 7], 5),
])
def test_breakers_there_are_found_by_where_they_begin(here, there, breakers, text, last_n):
    row = 9 * [1.0]
    fields = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_allowed_length": 1, "dry_penalty_last_n": last_n}
    mine = here(row, output=text, dry_sequence_breakers=[{"token_ids": breaker} for breaker in breakers], **fields)
    theirs = there(row, ("dry", 1.0, 2.0, 1, last_n, breakers), text=text)
    # Fewer tokens count here, so the penalty is smaller, and 0 in the first case.
    assert min(mine) > min(theirs)


def test_infill_there_makes_up_a_masked_end_and_takes_the_greedy_choice(serve, library, there, tmp_path):
    texts = ["<end>", "<turn>", *"abcdef"]
    libllama_vocabulary.write(tmp_path / "vocabulary.gguf", texts, eos=0, eot=1)
    (tmp_path / "vocabulary.json").write_text(json.dumps([None, None, *texts[2:]]))
    infill = ("infill", libllama_vocabulary.load(library, tmp_path / "vocabulary.gguf"))
    row, server = [MASKED, MASKED, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05], serve(f"--vocabulary={tmp_path / 'vocabulary.json'}")
    with croupier.connect(server.uds, len(row), eos_token_ids=[1, 0]) as stream:
        # No text has a fifth of the probability, and no token that ends the text may be emitted.
        assert there(row, infill) == [0, 1, 0, 0, 0, 0, 0, 0]
        report = {"max_surviving_token_ids": 8}
        text = stream.open(engine_order="llama_cpp", infill=True, report=report)
        [work] = stream.step(np.array([row], np.float32), [text]).work
        assert list(work.tokens[0].report.surviving_token_ids) == [2, 3, 4, 5, 6, 7]
        # The end is likely enough to be taken, but not the most likely token.
        row[0] = 0.0
        assert there(row, infill, ("temp_ext", 0.0, 0.0, 1.0)) == [1, 0, 0, 0, 0, 0, 0, 0]
        assert stream.sample(np.array([row], np.float32), [stream.open(engine_order="llama_cpp", infill=True, temperature=0.0)]) == [2]
