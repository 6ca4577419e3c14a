"""Drafts, how their verification is sent, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Listing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arrays import DTYPES, as_array, format_of, in_dtype, is_on_device
from ._checks import token_ids, whole
from ._sparse import SparseDistribution
from ._types import Sequence
from .errors import Failure, OpenError, RowError
from .schema import pb

if TYPE_CHECKING:
    import numpy.typing as npt

    from ._forms import Exported


@dataclass(frozen=True)
class Draft:
    """The draft tokens of one text, and where the distribution they were drawn from is."""

    sequence: Sequence
    token_ids: list[int] = field(default_factory=list)
    parents: list[int] | None = None
    """For trees: the index of the draft token that each follows, -1 for the text's last token. None: a chain."""
    distribution: npt.ArrayLike | Exported | SparseDistribution = "deterministic"
    """"kept": in the sidecar, from draft work. "deterministic": no token was drawn by chance. Otherwise the
    probabilities that the worker drew from, in the shape (draft tokens, vocab_size), or only those that are not 0, as a
    `SparseDistribution`. With a vocabulary of 128,256 a whole row is 513 KB for each draft token."""

    if TYPE_CHECKING:
        # Tokens and parents may be given as arrays too, and are lists afterwards.
        def __init__(self, sequence: Sequence, token_ids: Iterable[int] = (), parents: Iterable[int] | None = None,
                     distribution: npt.ArrayLike | Exported | SparseDistribution = "deterministic") -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.sequence, Sequence):
            raise TypeError(f"sequence is {self.sequence!r}, must be a Sequence that `open` returned")
        object.__setattr__(self, "token_ids", token_ids("token_ids", self.token_ids))
        if self.parents is not None:
            object.__setattr__(self, "parents", parents_of(self.parents))
            if len(self.parents) != len(self.token_ids):
                raise ValueError(f"parents has {len(self.parents)} entries, must have one for each of {len(self.token_ids)} draft tokens")

    @property
    def rows(self) -> int:
        """Rows of target logits that the verification takes: one after the text's last token, and one after each draft
        token."""
        return len(self.token_ids) + 1

    def first(self, count: int) -> Draft:
        """The first `count` draft tokens, with the distributions they were drawn from, or all if there are no more.
        Choose the count without looking at the tokens that are left out: dropping a token because of its value changes
        the text's distribution."""
        count = whole("count", count, 0)
        if count >= len(self.token_ids):
            return self
        of: Any = self.distribution
        if count == 0:
            of = "deterministic"
        elif isinstance(of, SparseDistribution):
            of = SparseDistribution(of.ids[:count], of.probabilities[:count])
        elif not isinstance(of, str):
            of = self._array().reshape(len(self.token_ids), -1)[:count]
        parents = self.parents if self.parents is None else self.parents[:count]
        return Draft(self.sequence, self.token_ids[:count], parents, of)

    def path(self, index: int) -> list[int]:
        """The indices of draft tokens from the first to this one. Empty for -1."""
        if index >= len(self.token_ids):
            raise IndexError(f"index is {index}, must be below {len(self.token_ids)}, the number of draft tokens")
        found: list[int] = []
        while index >= 0:
            found.append(index)
            index = self.parents[index] if self.parents is not None else index - 1
        return found[::-1]

    def work(self, measure: bool = False) -> pb.Work:
        """The `Work` that verifies this draft."""
        verify = pb.VerifyWork(draft_token_ids=self.token_ids, measure=measure)
        if self.parents is not None:
            verify.parents.extend(self.parents)
        if isinstance(self.distribution, str):
            # An empty draft was not drawn from anything.
            kind = self.distribution if self.token_ids else "deterministic"
            if kind not in ("kept", "deterministic"):
                raise ValueError(f'distribution is {kind!r}, must be "kept", "deterministic" or probabilities')
            getattr(verify, kind).SetInParent()
        elif isinstance(self.distribution, SparseDistribution):
            verify.sparse.SetInParent()
            verify.sparse.MergeFrom(self.distribution.encode(len(self.token_ids)))
        else:
            verify.dense.probs, verify.dense.dtype = self._probabilities()
        return pb.Work(sequence_id=self.sequence.id, verify=verify)

    def _array(self) -> np.ndarray[Any, Any]:
        """The probabilities, which must have a row for each draft token."""
        assert not isinstance(self.distribution, SparseDistribution)
        if is_on_device(self.distribution):
            raise ValueError("distribution is on a GPU; give a copy on the host, such as distribution.cpu() of a tensor")
        found = as_array(self.distribution, "f32")
        # A transposed array would have as many bytes, and nobody would notice.
        if found.ndim != 1 and (found.ndim != 2 or len(found) != len(self.token_ids)):
            raise ValueError(f"distribution has the shape {found.shape}, must be ({len(self.token_ids)}, vocab_size), a row for each draft token")
        return found

    def _probabilities(self) -> tuple[bytes, int]:
        """The probabilities in the format that they have. From it the server knows how far their sum may be from 1."""
        found = self._array()
        dtype, of = DTYPES[name := format_of(found)]
        return np.ascontiguousarray(in_dtype(found, name, "distribution is"), of).tobytes(), dtype


def parents_of(given: Iterable[int]) -> list[int]:
    """Checks the parents of draft tokens. Each must come before its token, since no path would end in a circle."""
    return [whole(f"parents[{at}]", parent, -1, at - 1) for at, parent in enumerate(given)]


@dataclass
class Verified:
    """The result of verifying a draft. Its tokens are also in `sequence.tokens`."""

    draft: Draft
    token_ids: list[int]
    """The emitted tokens: the accepted draft tokens, and one more unless the text ended with an accepted one, or
    `BLOCK` reached a row that cannot be sampled. In the latter case the row after the last token is needed again."""
    accepted_path: list[int]
    """Indices of the accepted draft tokens: which of them to keep in the KV cache."""
    last_token: str
    """How the last token was chosen: "recovered" after a draft token was rejected, "bonus" after the whole draft, or
    "accepted"."""
    lossless: bool
    """Whether the tokens have the target's distribution."""
    result: pb.WorkResult
    """The `WorkResult`: logprobs, reports, and tests if the draft was measured."""

    @property
    def sequence(self) -> Sequence:
        """The text."""
        return self.draft.sequence


class SpeculationError(RowError):
    """Some drafts could not be made or verified. Their texts are unchanged, except for texts that turned out to have
    ended: these have a `finish_reason` and are closed now.

    A draft that was "kept" fails if the server has gone away and come back since, because nobody knows any more what it
    was drawn from. Make it again.
    """

    def __init__(self, failures: dict[int, Failure], verified: list[Verified | None], result: pb.StepResult | None = None,
                 drafts: Listing[Draft] = ()) -> None:
        super().__init__(failures, result)
        self.verified = verified
        """For `verify`: the result of each draft, or None for drafts of texts in `failures`. Otherwise empty."""
        self.drafts = list(drafts)
        """For `chain` and `tree`, whose `result` is that of the first step with a failure: the drafts of all texts that
        are still open, in the order of the texts. `Draft.sequence` says which text each belongs to. Drafts of texts in
        `failures` end before the row that failed, and may be verified like the others. Otherwise empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures, self.verified, self.result, self.drafts)


@dataclass
class Undrawn:
    """Failures while drafts were drawn."""

    rows: dict[int, Failure] = field(default_factory=dict)
    """Why a text's draft does not continue, by the sequence's id."""
    result: pb.StepResult | None = None
    """The result of the first step in which a row failed."""
    openings: dict[int, Failure] = field(default_factory=dict)
    """Why texts were not opened, by the sequence's id."""
    opened: pb.StepResult | None = None
    """The result of the first step that reported this."""

    def no_row(self, sequence: Sequence, why: Failure, result: pb.StepResult) -> None:
        """Records a row that failed. If the text was not opened, its row's failure adds nothing."""
        if sequence.id not in self.openings:
            self.rows[sequence.id], self.result = why, self.result or result

    def not_opened(self, why: dict[int, Failure], result: pb.StepResult) -> None:
        """Records openings that failed."""
        self.openings, self.opened = self.openings | why, self.opened or result

    def check(self, drafts: Listing[Draft]) -> None:
        """Raises if something failed, with the drafts that there are."""
        rows = SpeculationError(self.rows, [], self.result, drafts) if self.rows else None
        if self.openings:
            raise OpenError(self.openings, self.opened, drafts=drafts) from rows
        if rows:
            raise rows
