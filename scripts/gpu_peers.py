"""What peers cost on a GPU: PyTorch's own operations, as vLLM's native path strings them together, and FlashInfer's sampling
kernels where the package is. The same row shapes, sizes and conditions as benches/gpu.rs."""

import statistics

import torch

ROUNDS = 100
FLUSH = None


def microseconds(work):
    """The median time between CUDA events, from cold caches."""
    times = []
    for _ in range(ROUNDS + 5):
        FLUSH.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times[5:])


def native_top_k_top_p(logits, k, p):
    """vLLM's path without a custom kernel: sort, mask, softmax, draw by the exponential race."""
    values, index = logits.sort(dim=-1, descending=False)
    values.masked_fill_(values < values[:, -k].unsqueeze(-1), -float("inf"))
    cumulated = values.softmax(dim=-1).cumsum(dim=-1)
    values.masked_fill_(cumulated <= 1 - p, -float("inf"))
    probs = torch.empty_like(values).scatter_(-1, index, values).softmax(dim=-1)
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(dim=-1)


def flashinfer_top_k_top_p():
    try:
        from flashinfer.sampling import top_k_top_p_sampling_from_probs
    except Exception as error:  # the package compiles at import or first use, and may fail in many ways
        print(f"SKIPPED: FlashInfer cannot be used: {error}")
        return None
    return lambda logits, k, p: top_k_top_p_sampling_from_probs(logits.softmax(dim=-1), k, p)


def main():
    global FLUSH
    FLUSH = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    flashinfer = flashinfer_top_k_top_p()
    print("| vocabulary | format | rows | what | us | GB/s of one read |\n|---|---|---|---|---|---|")
    for vocab in (32_000, 128_256, 151_936):
        for dtype in (torch.float32, torch.bfloat16):
            for rows in (1, 8, 64, 256):
                logits = (torch.randn(rows, vocab, device="cuda") * 2.5).to(dtype)
                size = logits.numel() * logits.element_size()
                work = {
                    "torch softmax": lambda: logits.float().softmax(dim=-1),
                    "torch softmax, multinomial": lambda: torch.multinomial(logits.float().softmax(dim=-1), 1),
                    "torch top-k 50, top-p .9": lambda: native_top_k_top_p(logits.float(), 50, 0.9),
                }
                if flashinfer is not None:
                    work["FlashInfer top-k 50, top-p .9"] = lambda: flashinfer(logits.float(), 50, 0.9)
                for name, run in work.items():
                    time = microseconds(run)
                    print(f"| {vocab} | {dtype} | {rows} | {name} | {time:.1f} | {size / time / 1e3:.0f} |")


main()
