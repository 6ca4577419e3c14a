"""Samplers and penalties, compared with those of Hugging Face Transformers: the probability of every token, row by row."""

import croupier
import numpy as np
import pytest

try:
    import torch
    import transformers as hf
    from transformers.generation import logits_process
except ImportError:
    torch = hf = logits_process = None

VOCAB, ROWS = 64, 150
#: Tokens that end a text, for the processor that emits one if it is likely.
EOS = [5, 9]

# Transformers' processors in its order, and the equivalent parameters here.
CHAINS = {
    "temperature": (lambda: [hf.TemperatureLogitsWarper(0.7)], {"temperature": 0.7}),
    "top-k": (lambda: [hf.TopKLogitsWarper(10)], {"top_k": 10}),
    "top-p": (lambda: [hf.TopPLogitsWarper(0.8)], {"top_p": 0.8}),
    "min-p": (lambda: [hf.MinPLogitsWarper(0.1)], {"min_p": 0.1}),
    "typical": (lambda: [hf.TypicalLogitsWarper(0.7)], {"typical_p": 0.7}),
    "epsilon": (lambda: [hf.EpsilonLogitsWarper(0.01)], {"epsilon_cutoff": 0.01}),
    "eta": (lambda: [hf.EtaLogitsWarper(0.02)], {"eta_cutoff": 0.02}),
    "top-h": (lambda: [hf.TopHLogitsWarper(0.4)], {"top_h": 0.4}),
    "temperature, top-k, top-p, typical": (
        lambda: [hf.TemperatureLogitsWarper(1.3), hf.TopKLogitsWarper(30), hf.TopPLogitsWarper(0.95), hf.TypicalLogitsWarper(0.9)],
        {"temperature": 1.3, "top_k": 30, "top_p": 0.95, "typical_p": 0.9}),
    "min-p, epsilon, eta": (
        lambda: [hf.MinPLogitsWarper(0.02), hf.EpsilonLogitsWarper(0.005), hf.EtaLogitsWarper(0.01)],
        {"min_p": 0.02, "epsilon_cutoff": 0.005, "eta_cutoff": 0.01}),
    "likely ends": (lambda: [logits_process.BarkEosPrioritizerLogitsProcessor(EOS, 0.02)], {"min_eos_p": 0.02}),
    "likely ends, temperature, top-k": (
        lambda: [logits_process.BarkEosPrioritizerLogitsProcessor(EOS, 0.02), hf.TemperatureLogitsWarper(0.7), hf.TopKLogitsWarper(30)],
        {"min_eos_p": 0.02, "temperature": 0.7, "top_k": 30}),
    "repetition penalty, top-k": (
        lambda: [hf.RepetitionPenaltyLogitsProcessor(1.4), hf.TopKLogitsWarper(20)], {"repetition_penalty": 1.4, "top_k": 20}),
    "no repeated 2-gram": (lambda: [hf.NoRepeatNGramLogitsProcessor(2)], {"no_repeat_ngram": {"size": 2}}),
    "no repeated token": (lambda: [hf.NoRepeatNGramLogitsProcessor(1)], {"no_repeat_ngram": {"size": 1}}),
    "sequence bias": (
        lambda: [hf.SequenceBiasLogitsProcessor([[[5], 2.5], [[7, 9], 4.0]])],
        {"sequence_bias": [{"token_ids": [5], "bias": 2.5}, {"token_ids": [7, 9], "bias": 4.0}]}),
}


@pytest.mark.skipif(torch is None, reason="transformers and torch are not installed")
@pytest.mark.parametrize("name", CHAINS)
def test_probabilities_are_those_of_transformers(server, name):
    make, fields = CHAINS[name]
    theirs, random = make(), np.random.default_rng(7)
    logprobs = {"mode": croupier.pb.LOGPROBS_MODE_PROCESSED, "token_ids": range(VOCAB)}
    changed = 0
    with croupier.connect(server.uds, VOCAB, eos_token_ids=EOS) as stream:
        for _ in range(ROWS):
            prompt, row = random.integers(0, VOCAB, 40).tolist(), random.normal(0, random.uniform(0.5, 4), (1, VOCAB)).astype(np.float32)
            # Processors that look back then find something.
            prompt[-1] = int(random.choice([7, prompt[3]]))
            text = stream.open(engine_order=croupier.pb.ENGINE_ORDER_TRANSFORMERS, logprobs=logprobs, prompt=prompt, **fields)
            given, scores = torch.tensor([prompt]), torch.tensor(row, dtype=torch.float64)
            for processor in theirs:
                scores = processor(given, scores)
            expected = torch.softmax(scores, dim=1)[0].numpy()
            [work] = stream.step(row, [text]).work
            got = np.exp(np.array(work.tokens[0].requested_logprobs, np.float64))
            assert np.abs(got - expected).max() < 2e-6, (prompt, row)
            assert ((got > 0) == (expected > 0)).all()
            changed += not np.allclose(expected, torch.softmax(torch.tensor(row, dtype=torch.float64), dim=1)[0].numpy())
            stream.close(text)
    assert changed > ROWS // 4, "the processors hardly ever did anything"


@pytest.mark.skipif(torch is None, reason="transformers and torch are not installed")
def test_ngrams_of_the_prompt_are_those_of_transformers(server):
    random, banned = np.random.default_rng(8), 0
    logprobs = {"mode": croupier.pb.LOGPROBS_MODE_PROCESSED, "token_ids": range(VOCAB)}
    with croupier.connect(server.uds, VOCAB) as stream:
        for size in [1, 2, 3] * (ROWS // 2):
            prompt, row = random.integers(0, 8, 40).tolist(), random.normal(0, 2, (1, VOCAB)).astype(np.float32)
            output = random.integers(0, 8, 5).tolist()
            text = stream.open(no_repeat_ngram={"prompt_size": size}, logprobs=logprobs, prompt=prompt, output=output)
            theirs = hf.EncoderNoRepeatNGramLogitsProcessor(size, torch.tensor([prompt]))
            scores = theirs(torch.tensor([prompt + output]), torch.tensor(row, dtype=torch.float64))
            [work] = stream.step(row, [text]).work
            got = np.exp(np.array(work.tokens[0].requested_logprobs, np.float64))
            expected = torch.softmax(scores, dim=1)[0].numpy()
            assert np.abs(got - expected).max() < 2e-6, (prompt, output)
            banned += int((expected == 0).sum())
            stream.close(text)
    assert banned > ROWS, "hardly anything was banned"
