"""Rows of which only the largest logits are sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ._arrays import DTYPES, as_array, in_dtype, narrowing
from ._checks import listed, shown
from .schema import pb

if TYPE_CHECKING:
    import numpy.typing as npt

    from ._forms import Array, Lines

_BEYOND = {"refuse": pb.BEYOND_TOP_N_REFUSE, "mark": pb.BEYOND_TOP_N_MARK}


@dataclass(eq=False)
class TopN:
    """The largest logits of each row with their token ids, and the log-sum-exp of the others.

    ids and logits: arrays of the shape (rows, n), or lists of rows of any lengths. uint16 means bf16 here, too. No
    other token may have a larger logit.
    rest_logsumexp: for each row, the natural logarithm of the sum of exp over all other logits; -inf if there are none.
    ties_in_order: whether tokens that equal the least listed logit are listed in the order of their ids. Then top_k n
    is certain, too.
    beyond: "refuse" or "mark", for all rows or for each row: what happens to a row if parameters reach beyond the list.

    `Stream.top_n` makes one from whole rows. docs/data-paths.md says which parameters need how many tokens.
    """

    ids: Lines
    logits: Lines
    rest_logsumexp: npt.ArrayLike
    ties_in_order: bool = False
    beyond: str | Sequence[str] = "refuse"

    def __post_init__(self) -> None:
        for name, rows in ("ids", self.ids), ("logits", self.logits):
            try:
                sum(map(len, rows))
            except TypeError:
                raise TypeError(f"{name} of a TopN are {shown(rows)}, must be a row for each row of logits, such as [[...], [...]]") from None
        for choice in [self.beyond] if isinstance(self.beyond, str) else listed("beyond", self.beyond, "choices", "'mark'"):
            if choice not in _BEYOND:
                raise ValueError(f"beyond is {choice!r}, must be one of {', '.join(_BEYOND)}")

    def encode(self, dtype: str) -> bytes:
        """The part of a step for these rows, on a stream with logits of that dtype."""
        ids = [ids_of(row, f"ids[{at}]") for at, row in enumerate(self.ids)]
        if odd := [at for at, row in enumerate(ids) if row.ndim != 1]:
            raise ValueError(f"ids[{odd[0]}] has the shape {ids[odd[0]].shape}, must be one-dimensional: the token ids of one row")
        with narrowing():
            logits = [in_dtype(as_array(row, dtype), dtype).astype(DTYPES[dtype][1]) for row in self.logits]
        if [row.shape for row in ids] != [row.shape for row in logits]:
            raise ValueError("ids and logits differ in shape")
        rest = self._rest()
        if len(rest) != len(ids):
            raise ValueError(f"rest_logsumexp has {len(rest)} entries for {len(ids)} rows, must have one for each")
        beyond = [self.beyond] * len(ids) if isinstance(self.beyond, str) else list(self.beyond)
        if len(beyond) != len(ids):
            raise ValueError(f"beyond has {len(beyond)} entries for {len(ids)} rows, must have one for each")
        rows = pb.TopNRows(counts=map(len, ids), logits=b"".join(row.tobytes() for row in logits),
                           rest_logsumexp=rest.tolist(), ties_in_order=self.ties_in_order,
                           beyond=[_BEYOND[choice] for choice in beyond])
        for row in ids:
            rows.token_ids.extend(row.tolist())
        return pb.Step(top_n=rows).SerializeToString()

    def part(self, first: int, end: int) -> TopN:
        """Some of the rows."""
        beyond = self.beyond if isinstance(self.beyond, str) else self.beyond[first:end]
        return TopN(self.ids[first:end], self.logits[first:end], self._rest()[first:end], self.ties_in_order, beyond)

    def _rest(self) -> Array:
        try:
            with narrowing():
                return np.asarray(self.rest_logsumexp, np.float32).reshape(-1)
        except (TypeError, ValueError):
            raise TypeError(f"rest_logsumexp is {shown(self.rest_logsumexp)}, must be a number for each row") from None


def ids_of(row: npt.ArrayLike, name: str) -> npt.NDArray[np.uint32]:
    """Token ids of a row. numpy alone would convert -1 to the largest number."""
    ids = np.asarray(row)
    if ids.size and ids.dtype.kind not in "iu":
        raise ValueError(f"{name} are {ids.dtype}, must be whole numbers")
    if ids.size and (ids.min() < 0 or ids.max() >= 1 << 32):
        raise ValueError(f"{name} has {ids.min() if ids.min() < 0 else ids.max()}, must be in 0 .. vocab_size - 1")
    return ids.astype(np.uint32)


def largest(rows: Array, n: int, beyond: str | Iterable[str]) -> TopN:
    """The `n` largest logits of each row of floats. Ties are ordered by id."""
    ids, logits, rest = [], [], []
    for row in rows:
        count = min(n, len(row))
        wrong = np.flatnonzero(~(row < np.inf))
        if len(wrong):
            # The server reports what is wrong, as for a whole row, where a NaN takes precedence over an infinity.
            chosen = np.sort(wrong[np.argsort(~np.isnan(row[wrong]), kind="stable")][:count])
            ids.append(chosen)
            logits.append(row[chosen])
            rest.append(-np.inf)
            continue
        least = np.partition(row, len(row) - count)[len(row) - count]
        above = np.flatnonzero(row > least)
        chosen = np.sort(np.concatenate([above, np.flatnonzero(row == least)[: count - len(above)]]))
        others = np.delete(row, chosen).astype(np.float64)
        others = others[others > -np.inf]
        ids.append(chosen)
        logits.append(row[chosen])
        top = others.max() if len(others) else 0.0
        with np.errstate(divide="ignore"):
            rest.append(top + np.log(np.exp(others - top).sum()))
    return TopN(ids, logits, rest, ties_in_order=True, beyond=beyond if isinstance(beyond, str) else listed("beyond", beyond, "choices", "'mark'"))
