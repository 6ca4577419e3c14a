"""Measures peers on a GPU: PyTorch's own operations, combined as in vLLM's native path, and FlashInfer's sampling kernels if the
package is installed. Row shapes, sizes and conditions are those of benches/gpu.rs: cold is after a read of other memory, hot after
the same work. FlashInfer comes last, because it may compile for a long time, or fail to compile without a network."""

import statistics

import torch

ROUNDS = 100
# Number of calls before a hot one, so that it finds everything in the caches.
HOT_AFTER = 3
VOCAB_SIZES = (128_256, 151_936, 32_000)
# Draft tokens of a verification, as in benches/gpu.rs.
DRAFTED = 8


def elapsed(before, work):
    """The median time in microseconds between CUDA events around `work`, each time after `before`. `before` keeps the device busy
    while events and work are queued, so no host time is measured, unless the work takes longer to queue than to run. An event is
    created when it is first recorded, so the same events are recorded again."""
    times = []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(ROUNDS + 5):
        before()
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times[5:])


def cold_and_hot(flush, work):
    """The time after a sum, which reads more than the caches hold and leaves no dirty lines in them, and the time after itself."""

    def again():
        for _ in range(HOT_AFTER):
            work()

    return elapsed(lambda: torch.sum(flush), work), elapsed(again, work)


def copy_rate(memory):
    """Bytes per microsecond that a device copy reads and writes: the best of several, each after another copy."""
    half = memory.numel() // 2
    size = 2 * half * memory.element_size()
    work = lambda: memory[half : 2 * half].copy_(memory[:half])
    return size / min(elapsed(work, work) for _ in range(3))


def native_top_k_top_p(logits, k, p):
    """vLLM's path without a custom kernel: sort, mask, softmax, and a draw by exponential race."""
    values, index = logits.sort(dim=-1, descending=False)
    values.masked_fill_(values < values[:, -k].unsqueeze(-1), -float("inf"))
    cumulated = values.softmax(dim=-1).cumsum(dim=-1)
    values.masked_fill_(cumulated <= 1 - p, -float("inf"))
    probs = torch.empty_like(values).scatter_(-1, index, values).softmax(dim=-1)
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(dim=-1)


NATIVE = {
    "torch argmax": lambda logits: logits.argmax(dim=-1),
    "torch softmax": lambda logits: logits.float().softmax(dim=-1),
    "torch softmax, multinomial": lambda logits: torch.multinomial(logits.float().softmax(dim=-1), 1),
    "torch top-k 50, top-p .9": lambda logits: native_top_k_top_p(logits.float(), 50, 0.9),
}


def flashinfer():
    """FlashInfer's working operations by name: samplers of logits, and verification of drafts from probabilities."""
    try:
        from flashinfer import sampling
    except Exception as error:  # the package may compile at import, and fail in many ways
        print(f"SKIPPED: nothing is compared with FlashInfer, which cannot be imported: {error}", flush=True)
        return {}, {}
    probs = lambda logits: logits.float().softmax(dim=-1)
    samplers = {
        "FlashInfer top-k 50, top-p .9": lambda logits: sampling.top_k_top_p_sampling_from_logits(logits.float(), 50, 0.9),
        "softmax, FlashInfer top-k 50, top-p .9": lambda logits: sampling.top_k_top_p_sampling_from_probs(probs(logits), 50, 0.9),
        "softmax, FlashInfer min-p .05": lambda logits: sampling.min_p_sampling_from_probs(probs(logits), 0.05),
        "softmax, FlashInfer top-p .9": lambda logits: sampling.top_p_sampling_from_probs(probs(logits), 0.9),
        "FlashInfer temperature only": lambda logits: sampling.sampling_from_logits(logits.float()),
    }
    verifiers = {"FlashInfer chain speculative sampling": lambda *probs: sampling.chain_speculative_sampling(*probs)}
    return works(samplers, lambda: [torch.zeros(1, 1000, device="cuda")]), works(verifiers, lambda: chains(1, 1000))


def works(operations, arguments):
    """The operations that work here. Each may compile on first use, which takes long and does not succeed everywhere."""
    working = {}
    for name, operation in operations.items():
        try:
            operation(*arguments())
            torch.cuda.synchronize()
            working[name] = operation
        except Exception as error:
            print(f"SKIPPED: {name} cannot be used: {error}", flush=True)
    return working


def chains(batch, vocab):
    """Draft probabilities, draft tokens and target probabilities. There is one more target row than draft rows."""
    probs = lambda rows: (torch.randn(batch, rows, vocab, device="cuda") * 2.5).softmax(dim=-1)
    draft = probs(DRAFTED)
    tokens = torch.multinomial(draft.view(-1, vocab), 1).view(batch, DRAFTED).int()
    return draft, tokens, probs(DRAFTED + 1)


def measure_chains(flush, operations):
    """Measures verification from probabilities, and from f32 logits with a softmax. These are the rows of `x one read` in
    benches/gpu.rs."""
    if operations:
        print(f"\n| vocabulary | drafts of {DRAFTED} | what | cold us | hot us | GB/s of one read of the targets, cold |\n|---|---|---|---|---|---|")
    for name, operation in operations.items():
        for batch in (1, 8, 32):
            draft, tokens, target = chains(batch, VOCAB_SIZES[0])
            logits, size = target.log(), target.numel() * target.element_size()
            for what, work in (
                (name, lambda: operation(draft, tokens, target)),
                (f"softmax, {name}", lambda: operation(draft, tokens, logits.softmax(dim=-1))),
            ):
                cold, hot = cold_and_hot(flush, work)
                print(f"| {VOCAB_SIZES[0]} | {batch} | {what} | {cold:.1f} | {hot:.1f} | {size / cold / 1e3:.0f} |", flush=True)


def measure(flush, operations):
    for vocab in VOCAB_SIZES if operations else ():
        for dtype in (torch.float32, torch.bfloat16):
            for rows in (1, 8, 64, 256):
                logits = (torch.randn(rows, vocab, device="cuda") * 2.5).to(dtype)
                size = logits.numel() * logits.element_size()
                for name, operation in operations.items():
                    cold, hot = cold_and_hot(flush, lambda: operation(logits))
                    line = f"| {vocab} | {dtype} | {rows} | {name} | {cold:.1f} | {hot:.1f} | {size / cold / 1e3:.0f} |"
                    print(line, flush=True)


def main():
    flush = torch.zeros(128 << 20, dtype=torch.float32, device="cuda")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"device copy: {copy_rate(flush) / 1e3:.0f} GB/s, reading and writing counted\n")
    print("| vocabulary | format | rows | what | cold us | hot us | GB/s of one read, cold |\n|---|---|---|---|---|---|---|", flush=True)
    measure(flush, NATIVE)
    samplers, verifiers = flashinfer()
    measure(flush, samplers)
    measure_chains(flush, verifiers)


if __name__ == "__main__":
    main()
