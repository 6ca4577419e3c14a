"""A small transformer in numpy: what transformer_worker.py decodes with and train_transformer.py trains.

Decoder only, as large ones are: RMS norm, rotary positions, multi-head attention with a KV cache, squared ReLU, tied embeddings. Its
tokens are the 96 characters of `CHARACTERS`. Weights are plain arrays, so that both files can use them.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

# The matrices are so small that threads cost more than they bring. It must be said before numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
WEIGHTS = pathlib.Path(__file__).with_name("transformer.npz")
#: How many tokens one sees; they were trained on pieces of 96.
WINDOW = 72
_EPSILON = 1e-5


def encode(text: str) -> list[int]:
    """Token ids of a text; characters that have none are left out."""
    return [CHARACTERS.index(letter) for letter in text if letter in CHARACTERS]


def decode(tokens: Iterable[int]) -> str:
    """The text of token ids."""
    return "".join(CHARACTERS[token] for token in tokens)


def normed(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """RMS norm without a gain, and what it divided by."""
    size = np.sqrt((x * x).mean(-1, keepdims=True) + _EPSILON)
    return x / size, size


def turned(x: np.ndarray, positions: np.ndarray, back: bool = False) -> np.ndarray:
    """Rotary embedding: the last axis in pairs, turned by angles that grow with the position, the last axis but one's."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * (1e-3 ** (np.arange(half) / half))
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(-angles if back else angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], -1)


class Cache:
    """Keys and values of one text."""

    def __init__(self, layers: int, heads: int, head_size: int) -> None:
        self.keys = np.zeros((layers, heads, 64, head_size), np.float32)
        self.values = np.zeros_like(self.keys)
        self.length = 0

    def reserve(self, count: int) -> None:
        """Makes room for so many tokens more."""
        room = self.keys.shape[2]
        if self.length + count > room:
            grown = [(0, 0), (0, 0), (0, max(room, count)), (0, 0)]
            self.keys, self.values = np.pad(self.keys, grown), np.pad(self.values, grown)

    def keep(self, length: int, slots: Iterable[int] = ()) -> None:
        """Keeps the first `length` tokens, and behind them those of `slots`: what is left of a draft."""
        kept = np.asarray([*range(length), *slots], int)
        self.keys[:, :, : len(kept)], self.values[:, :, : len(kept)] = self.keys[:, :, kept], self.values[:, :, kept]
        self.length = len(kept)


class Transformer:
    """Weights, and how to get logits from them."""

    def __init__(self, weights: dict[str, np.ndarray], heads: int) -> None:
        self.weights, self.heads = weights, heads
        self.layers = sum(name.startswith("qkv") for name in weights)
        self.size = weights["embedding"].shape[1]

    @classmethod
    def load(cls, name: str) -> Transformer:
        """`target`, or `draft`, a smaller one."""
        with np.load(WEIGHTS) as file:
            found = {key.partition(".")[2]: file[key].astype(np.float32) for key in file if key.startswith(name)}
        return cls(found, int(found.pop("heads")))

    def cache(self) -> Cache:
        """For a new text."""
        return Cache(self.layers, self.heads, self.size // self.heads)

    def forward(self, caches: list[Cache], tokens: list[list[int]], parents: list[list[int]] | None = None) -> list[np.ndarray]:
        """Logits behind each of these tokens, for each text an array of shape (its tokens, 96); caches grow by them.

        `parents[text][i]` is the index of the token that token i follows, -1 for the cache: so a tree of draft tokens takes one pass.
        Without it they follow one another.
        """
        shapes = [_shape(cache.length, parents[at] if parents else range(-1, len(tokens[at]) - 1)) for at, cache in enumerate(caches)]
        for cache, own in zip(caches, tokens):
            cache.reserve(len(own))
        ends = np.cumsum([len(own) for own in tokens])[:-1]
        x = self.weights["embedding"][np.concatenate(tokens).astype(int)]
        for layer in range(self.layers):
            qkv = np.split(normed(x)[0] @ self.weights[f"qkv{layer}"], ends)
            mixed = [self._attend(layer, *each) for each in zip(caches, qkv, shapes)]
            x = x + np.concatenate(mixed) @ self.weights[f"out{layer}"]
            x = x + np.maximum(normed(x)[0] @ self.weights[f"up{layer}"], 0) ** 2 @ self.weights[f"down{layer}"]
        for cache, own in zip(caches, tokens):
            cache.length += len(own)
        return np.split(normed(x)[0] @ self.weights["embedding"].T, ends)

    def _attend(self, layer: int, cache: Cache, qkv: np.ndarray, shape: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        positions, sees = shape
        count, end = len(qkv), cache.length + len(qkv)
        q, k, v = qkv.reshape(count, 3, self.heads, -1).transpose(1, 2, 0, 3)
        cache.keys[layer, :, cache.length : end] = turned(k, positions)
        cache.values[layer, :, cache.length : end] = v
        scores = turned(q, positions) @ cache.keys[layer, :, :end].transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores = np.where(sees, scores, np.float32(-np.inf))
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        return (share @ cache.values[layer, :, :end]).transpose(1, 0, 2).reshape(count, -1)


def _shape(length: int, parents: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Positions of new tokens, and which tokens each sees: of the cache the latest, those that it follows, and itself."""
    parents = list(parents)
    positions = np.zeros(len(parents), int)
    sees = np.zeros((len(parents), length + len(parents)), bool)
    for token, parent in enumerate(parents):
        if parent >= 0:
            sees[token] = sees[parent]
        positions[token] = positions[parent] + 1 if parent >= 0 else length
        sees[token, : max(positions[token] + 1 - WINDOW, 0)] = False
        sees[token, length + token] = True
        if parent < 0:
            sees[token, max(length + 1 - WINDOW, 0) : length] = True
    return positions, sees
