"""SynthID, compared with Hugging Face Transformers' own processor: the probability of every token, position by position, with the bits of
its own table, and with repeated contexts."""

import croupier
import numpy as np
import pytest

try:
    import torch
    import transformers
except ImportError:
    torch = transformers = None

KEYS = (654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468, 990, 966, 226, 324, 585, 118, 504, 421, 521, 129, 669, 732,
        225, 90, 960)
VOCAB, TOKENS = 64, 60


def logits(position):
    return np.random.default_rng(position).normal(0, 2, VOCAB).astype(np.float32)[None]


@pytest.mark.skipif(torch is None, reason="transformers and torch are not installed")
@pytest.mark.parametrize("mark", [
    {"ngram_len": 5, "context_history_size": 1024}, {"ngram_len": 2, "context_history_size": 8}, {"ngram_len": 3, "context_history_size": 1},
    {"ngram_len": 5, "context_history_size": 1024, "skip_first_ngram_calls": True},
    {"ngram_len": 4, "context_history_size": 64, "sampling_table_size": 1000, "sampling_table_seed": 7},
])
def test_probabilities_are_those_of_transformers(server, mark):
    params = croupier.SamplingParams(
        temperature=1, seed=5, watermark=croupier.WatermarkParams(synthid=croupier.SynthidParams(keys=KEYS, **mark)),
        logprobs=croupier.LogprobsParams(mode=croupier.pb.LOGPROBS_MODE_PROCESSED, token_ids=range(VOCAB)))
    table = {"sampling_table_size": 1 << 16, "sampling_table_seed": 0} | mark
    theirs = transformers.SynthIDTextWatermarkLogitsProcessor(keys=list(KEYS), device=torch.device("cpu"), **table)
    plain = marked = 0
    with croupier.connect(server.uds, VOCAB) as stream:
        text = stream.open(params)
        for position in range(TOKENS):
            row = logits(position)
            given = torch.tensor([text.tokens or [0]])
            expected = torch.softmax(theirs(given, torch.tensor(row, dtype=torch.float64)), dim=1)[0].numpy()
            [work] = stream.step(row, [text]).work
            got = np.exp(np.array(work.tokens[0].requested_logprobs, np.float64))
            assert np.abs(got - expected).max() < 1e-6, position
            is_plain = np.allclose(expected, torch.softmax(torch.tensor(row, dtype=torch.float64), dim=1)[0].numpy())
            plain, marked = plain + is_plain, marked + (not is_plain)
    assert marked > 20, "hardly anything was marked"
    assert plain > 0 or mark["context_history_size"] != 8, "no context came again"
