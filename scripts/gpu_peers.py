"""What peers cost on a GPU: PyTorch's own operations, as vLLM's native path strings them together, and FlashInfer's sampling
kernels where the package is. The same row shapes, sizes and conditions as benches/gpu.rs: cold behind a read of other memory,
hot behind the same work. FlashInfer comes last: it may compile for long, or not at all without a network."""

import statistics

import torch

ROUNDS = 100
# Calls before one that is to find everything in the caches.
HOT_AFTER = 3
VOCAB_SIZES = (128_256, 151_936, 32_000)


def elapsed(before, work):
    """The median microseconds between CUDA events around some work, each time behind something else. That keeps the device
    busy while events and work are queued, so no time of the host's is measured, unless the work takes longer to queue than
    to do."""
    times = []
    for _ in range(ROUNDS + 5):
        before()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times[5:])


def cold_and_hot(flush, work):
    """Behind a sum, which reads more than the caches hold and leaves nothing in them to be written back; behind itself."""

    def again():
        for _ in range(HOT_AFTER):
            work()

    return elapsed(lambda: torch.sum(flush), work), elapsed(again, work)


def copy_rate(memory):
    """Bytes per microsecond that a device copy reads and writes, the best of several."""
    half = memory.numel() // 2
    size = 2 * half * memory.element_size()
    work = lambda: memory[half : 2 * half].copy_(memory[:half])
    return size / min(elapsed(lambda: None, work) for _ in range(3))


def native_top_k_top_p(logits, k, p):
    """vLLM's path without a custom kernel: sort, mask, softmax, draw by the exponential race."""
    values, index = logits.sort(dim=-1, descending=False)
    values.masked_fill_(values < values[:, -k].unsqueeze(-1), -float("inf"))
    cumulated = values.softmax(dim=-1).cumsum(dim=-1)
    values.masked_fill_(cumulated <= 1 - p, -float("inf"))
    probs = torch.empty_like(values).scatter_(-1, index, values).softmax(dim=-1)
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(dim=-1)


NATIVE = {
    "torch softmax": lambda logits: logits.float().softmax(dim=-1),
    "torch softmax, multinomial": lambda logits: torch.multinomial(logits.float().softmax(dim=-1), 1),
    "torch top-k 50, top-p .9": lambda logits: native_top_k_top_p(logits.float(), 50, 0.9),
}


def flashinfer():
    try:
        from flashinfer.sampling import top_k_top_p_sampling_from_probs as sample

        sample(torch.full((1, 1000), 1e-3, device="cuda"), 50, 0.9)
    except Exception as error:  # the package compiles at import or first use, and may fail in many ways
        print(f"SKIPPED: FlashInfer cannot be used: {error}", flush=True)
        return {}
    return {"FlashInfer top-k 50, top-p .9": lambda logits: sample(logits.float().softmax(dim=-1), 50, 0.9)}


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
    measure(flush, flashinfer())


if __name__ == "__main__":
    main()
