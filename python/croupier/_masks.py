"""Masks of grammars, as engines fill them, together with the texts that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._arrays import as_array, is_on_device
from ._types import Sequence
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Array, Masks, Numbers

_WORD = np.dtype("<u4")


def masked(sequences: list[Sequence], token_masks: Masks, vocab_size: int) -> list[pb.Work]:
    """Work that samples each sequence behind its mask. A mask that removes nothing is not sent."""
    masks = encoded([1] * len(sequences), token_masks, vocab_size, "sequences")
    return [pb.Work(sequence_id=sequence.id, sample=pb.SampleWork(), token_masks=mask) for sequence, mask in zip(sequences, masks)]


def encoded(counts: list[int], token_masks: Masks, vocab_size: int, of: str) -> list[bytes]:
    """The masks of works, each of which uses this many rows, as they are sent. Empty for a work whose masks remove
    nothing."""
    rows: list[Any] = list(token_masks) if isinstance(token_masks, (list, tuple)) else _rows(token_masks)
    if len(rows) != sum(counts):
        raise ValueError(f"token_masks have {len(rows)} rows for {sum(counts)} {of}, must have one for each; use None for no mask")
    wire = [_wire(at, row, vocab_size) for at, row in enumerate(rows)]
    found, start = [], 0
    for count in counts:
        own, start = wire[start:start + count], start + count
        # If one row of a work has a mask, every row of the work must have one.
        found.append(b"".join(one or b"\xff" * (-(-vocab_size // 32) * 4) for one in own) if any(own) else b"")
    return found


def _rows(given: Any) -> list[Array]:
    array = _array(given)
    if array.ndim != 2:
        raise ValueError(f"token_masks have the shape {array.shape}, must be (rows, words of 32 bits), or (rows, vocab_size) of bool")
    return list(array)


def _array(given: Numbers) -> Array:
    if is_on_device(given):
        raise ValueError("token_masks are on a GPU; give a copy on the host, such as token_masks.cpu() of a tensor")
    if isinstance(given, (bytes, bytearray)):
        # As they go over the wire.
        return np.frombuffer(given, np.uint8 if len(given) % _WORD.itemsize else _WORD)
    return as_array(given, "f32")


def _wire(at: int, row: Numbers | None, vocab_size: int) -> bytes:
    """A mask as it is sent. Empty if it removes nothing."""
    if row is None:
        return b""
    if isinstance(row, (bytes, bytearray)):
        _check_bits(at, len(row), vocab_size, "bytes", "numpy.frombuffer(mask, bool)")
    words = _words(at, _array(row), vocab_size)
    rest = vocab_size % 32
    there = np.full(len(words), 0xFFFFFFFF, _WORD)
    if rest:
        there[-1] = (1 << rest) - 1
    return b"" if np.array_equal(words & there, there) else words.tobytes()


def _words(at: int, row: Array, vocab_size: int) -> Array:
    count = -(-vocab_size // 32)
    if row.ndim != 1:
        raise ValueError(f"token_masks[{at}] has the shape {row.shape}, must be one-dimensional")
    if row.dtype == np.bool_:
        _check(at, len(row), vocab_size, "values")
        bits = np.packbits(row[:vocab_size], bitorder="little")
        return np.concatenate([bits, np.zeros(count * 4 - len(bits), np.uint8)]).view(_WORD)
    # XGrammar has int32, other engines uint32. The bits are the same.
    if row.dtype.kind not in "iu" or row.dtype.itemsize != 4:
        raise TypeError(f"token_masks[{at}] is {row.dtype}, must be int32 or uint32 words with a bit for each token, or bool")
    _check(at, len(row), count, "words")
    _check_bits(at, len(row), vocab_size, "words", "mask.astype(bool)")
    return np.ascontiguousarray(row[:count].astype(row.dtype.newbyteorder("<"), copy=False)).view(_WORD)


def _check_bits(at: int, length: int, vocab_size: int, what: str, instead: str) -> None:
    """Checks that a mask does not have a number for each token. Those would be taken for bits, and other tokens would
    be removed. Beyond the first word, no vocabulary is padded to 8 times its size."""
    bits = length * (8 if what == "bytes" else 32)
    if length >= vocab_size and bits >= vocab_size + 32:
        raise ValueError(f"token_masks[{at}] has {length} {what} for a vocabulary of {vocab_size}, and a {what[:-1]} has the bits of {bits // length} "
                         f"tokens; if it has a number for each token, give {instead}")


def _check(at: int, length: int, least: int, what: str) -> None:
    """Checks the length of a mask. Masks may be longer, because engines also make them for padded vocabularies."""
    if length < least:
        raise ValueError(f"token_masks[{at}] has {length} {what}, must have at least {least} for the vocabulary")

