"""Trains the two models of transformer_worker.py on the text of this repository's pages: a target and a smaller draft model.

    python python/examples/train_transformer.py [STEPS]

Forward and backward pass in numpy, Adam, a few minutes. Writes transformer.npz, which is committed, beside this file.
"""

from __future__ import annotations

import pathlib
import re
import sys
import time

from transformer import CHARACTERS, WEIGHTS, encode, normed, turned

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
LENGTH, BATCH = 96, 24
#: Layers, heads, size.
MODELS = {"target": (2, 4, 64), "draft": (1, 2, 32)}


def corpus() -> np.ndarray:
    """Sentences of the pages: no code, no tables, one paragraph a line."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = []
    for page in pages:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for paragraph in prose.split("\n\n"):
            if not paragraph.startswith(("|", "#", "    ", "-", "<", "!", "[")):
                plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph)
                texts.append(re.sub(r"[`*_]|\s+", lambda found: " " if found[0].isspace() else "", plain).strip())
    return np.asarray(encode("\n".join(text for text in texts if len(text) > 40)))


def fresh(layers: int, size: int, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights before training."""
    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (draw.normal(size=(rows, columns)) * scale / np.sqrt(rows)).astype(np.float32)

    weights = {"embedding": (draw.normal(size=(len(CHARACTERS), size)) * 0.1).astype(np.float32)}
    for layer in range(layers):
        weights[f"qkv{layer}"] = matrix(size, 3 * size)
        weights[f"out{layer}"] = matrix(size, size, 0.3)
        weights[f"up{layer}"] = matrix(size, 4 * size)
        weights[f"down{layer}"] = matrix(4 * size, size, 0.3)
    return weights


def normed_back(dy: np.ndarray, y: np.ndarray, size: np.ndarray) -> np.ndarray:
    return (dy - y * (dy * y).mean(-1, keepdims=True)) / size


def _flat(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The gradient of a matrix that x was multiplied by."""
    return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])


def loss_and_gradients(weights: dict[str, np.ndarray], heads: int, ids: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
    """Cross entropy of the next token in nats, and what it changes by with each weight."""
    inputs, wanted = ids[:, :-1], ids[:, 1:]
    count, length = inputs.shape
    layers = sum(name.startswith("qkv") for name in weights)
    positions = np.arange(length)
    future = np.triu(np.full((length, length), -np.inf, np.float32), 1)
    x, kept = weights["embedding"][inputs], []
    scale = np.float32(1 / np.sqrt(x.shape[-1] // heads))
    for layer in range(layers):
        a, a_size = normed(x)
        q, k, v = (a @ weights[f"qkv{layer}"]).reshape(count, length, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        q, k = turned(q, positions) * scale, turned(k, positions)
        share = q @ k.transpose(0, 1, 3, 2) + future
        share = np.exp(share - share.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        mixed = (share @ v).transpose(0, 2, 1, 3).reshape(count, length, -1)
        x = x + mixed @ weights[f"out{layer}"]
        b, b_size = normed(x)
        up = np.maximum(b @ weights[f"up{layer}"], 0)
        x = x + up**2 @ weights[f"down{layer}"]
        kept.append((a, a_size, q, k, v, share, mixed, b, b_size, up))
    h, h_size = normed(x)
    logits = h @ weights["embedding"].T
    logits -= logits.max(-1, keepdims=True)
    probs = np.exp(logits)
    total = probs.sum(-1, keepdims=True)
    loss = float((np.log(total[..., 0]) - np.take_along_axis(logits, wanted[..., None], -1)[..., 0]).mean())

    probs /= total
    np.put_along_axis(probs, wanted[..., None], np.take_along_axis(probs, wanted[..., None], -1) - 1, -1)
    d_logits = probs / np.float32(wanted.size)
    gradients = {"embedding": _flat(d_logits, h)}
    dx = normed_back(d_logits @ weights["embedding"], h, h_size)
    for layer in reversed(range(layers)):
        a, a_size, q, k, v, share, mixed, b, b_size, up = kept[layer]
        gradients[f"down{layer}"] = _flat(up**2, dx)
        d_up = (dx @ weights[f"down{layer}"].T) * 2 * up
        gradients[f"up{layer}"] = _flat(b, d_up)
        dx = dx + normed_back(d_up @ weights[f"up{layer}"].T, b, b_size)
        gradients[f"out{layer}"] = _flat(mixed, dx)
        d_mixed = (dx @ weights[f"out{layer}"].T).reshape(count, length, heads, -1).transpose(0, 2, 1, 3)
        d_share = d_mixed @ v.transpose(0, 1, 3, 2)
        d_scores = share * (d_share - (d_share * share).sum(-1, keepdims=True))
        d_q = turned(d_scores @ k * scale, positions, back=True)
        d_k = turned(d_scores.transpose(0, 1, 3, 2) @ q, positions, back=True)
        d_v = share.transpose(0, 1, 3, 2) @ d_mixed
        d_qkv = np.stack([d_q, d_k, d_v]).transpose(1, 3, 0, 2, 4).reshape(count, length, -1)
        gradients[f"qkv{layer}"] = _flat(a, d_qkv)
        dx = dx + normed_back(d_qkv @ weights[f"qkv{layer}"].T, a, a_size)
    np.add.at(gradients["embedding"], inputs, dx)
    return loss, gradients


def train(name: str, text: np.ndarray, steps: int) -> dict[str, np.ndarray]:
    """Adam with a rate that rises and falls."""
    layers, heads, size = MODELS[name]
    draw = np.random.default_rng(1)
    weights = fresh(layers, size, draw)
    first = {key: np.zeros_like(value) for key, value in weights.items()}
    second = {key: np.zeros_like(value) for key, value in weights.items()}
    started, mean = time.perf_counter(), None
    for step in range(1, steps + 1):
        at = draw.integers(len(text) - LENGTH, size=BATCH)
        loss, gradients = loss_and_gradients(weights, heads, text[at[:, None] + np.arange(LENGTH + 1)[None]])
        rate = 4e-3 * min(step / 100, 1) * (0.5 + 0.5 * np.cos(np.pi * step / steps))
        for key, gradient in gradients.items():
            first[key] += 0.1 * (gradient - first[key])
            second[key] += 0.02 * (gradient**2 - second[key])
            step_size = (first[key] / (1 - 0.9**step)) / (np.sqrt(second[key] / (1 - 0.98**step)) + 1e-8)
            weights[key] -= np.float32(rate) * step_size
        mean = loss if mean is None else 0.98 * mean + 0.02 * loss
        if step % 100 == 0:
            print(f"{name}: step {step}, loss {mean:.3f}, {time.perf_counter() - started:.0f} s", flush=True)
    return {**weights, "heads": np.asarray(heads)}


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2500
    text = corpus()
    print(f"{len(text)} characters")
    models = {name: train(name, text, steps) for name in MODELS}
    arrays = {f"{name}.{key}": value.astype(np.float16 if value.ndim else np.int64)
              for name, weights in models.items() for key, value in weights.items()}
    np.savez_compressed(WEIGHTS, **arrays)
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
