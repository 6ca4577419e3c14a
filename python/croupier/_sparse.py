"""The distribution of draft tokens, if only few tokens had a probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arrays import as_array, in_dtype, is_on_device, narrowing
from ._top_n import ids_of
from .schema import pb

if TYPE_CHECKING:
    from ._forms import Array, Lines


@dataclass(eq=False)
class SparseDistribution:
    """The probabilities of the tokens that have one, for `Draft.distribution`. All others have the probability 0.

    ids and probabilities: a row for each draft token, as arrays of the shape (draft tokens, n) or as lists of rows of
    any lengths. uint16 means bf16 here, too. The probabilities of a row sum to 1 within 1e-3, and no token appears in
    it twice.
    """

    ids: Lines
    probabilities: Lines

    def encode(self, count: int) -> pb.SparseDraft:
        """The message for this many draft tokens."""
        ids = [ids_of(_on_host(row), f"distribution.ids[{at}]") for at, row in enumerate(_on_host(self.ids))]
        probs = [_numbers(row, at) for at, row in enumerate(_on_host(self.probabilities))]
        if not len(ids) == len(probs) == count:
            raise ValueError(f"distribution has {len(ids)} rows of ids and {len(probs)} of probabilities, "
                             f"must have {count} of both, one for each draft token")
        for at, (row, own) in enumerate(zip(ids, probs)):
            if row.ndim != 1 or row.shape != own.shape:
                raise ValueError(f"distribution.ids[{at}] has the shape {row.shape} and probabilities[{at}] {own.shape}, "
                                 "must be one-dimensional and equally long")
            tokens, found = np.unique(row, return_counts=True)
            if len(tokens) < len(row):
                # This happens if rows of one array were padded.
                raise ValueError(f"distribution.ids[{at}] has token {tokens[found > 1][0]} twice; leave out tokens with probability 0")
        draft = pb.SparseDraft(counts=[len(row) for row in ids])
        for row, own in zip(ids, probs):
            draft.token_ids.extend(row.tolist())
            draft.probs.extend(own.tolist())
        return draft


def _on_host(given: Any) -> Any:
    if is_on_device(given):
        raise ValueError("distribution is on a GPU; give a copy on the host, such as .cpu() of a tensor")
    return given


def _numbers(row: Any, at: int) -> Array:
    with narrowing():
        return in_dtype(as_array(_on_host(row), "f32"), "f32", f"distribution.probabilities[{at}] is").astype("<f4")
