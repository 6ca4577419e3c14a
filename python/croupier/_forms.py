"""What may be given, and what memory looks like: for type checkers alone, since nothing imports it at run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence as Listing
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ._device import DeviceArray
from ._top_n import TopN
from ._types import Rows, Sequence
from .params import SamplingParams
from .schema import pb

#: An array of whatever numbers.
Array: TypeAlias = npt.NDArray[Any]
#: Where rows lie.
Memory: TypeAlias = Array | DeviceArray


class Exported(Protocol):
    """An array of another library, by DLPack."""

    def __dlpack__(self) -> Any: ...


class OnDevice(Protocol):
    """An array on a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class TorchDtype(Protocol):
    """A number format as PyTorch has it."""

    @property
    def is_floating_point(self) -> bool: ...


class Lines(Protocol):
    """Rows that can be counted and gone through: a list, an array, a tensor."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, at: slice, /) -> Any: ...


class Place(Protocol):
    """What rows are of, which takes them back too."""

    def rows(self, count: int) -> Rows: ...

    def discard(self, rows: Rows) -> None: ...


#: A number format, by its name or as a library has it.
Dtype: TypeAlias = str | np.dtype[Any] | type[np.generic] | TorchDtype
#: Numbers that numpy can have: arrays, tensors on the host, lists, and bytes as they go over the wire.
Numbers: TypeAlias = npt.ArrayLike | Exported | bytes | bytearray | memoryview
#: Whole rows.
Whole: TypeAlias = Numbers | OnDevice | Rows
#: What a step takes.
Logits: TypeAlias = Whole | TopN | tuple[Whole, TopN] | None
#: Masks of grammars.
Masks: TypeAlias = Numbers | Listing[Numbers | None]
#: What a step does.
Work: TypeAlias = Sequence | pb.Work
#: Parameters as a whole.
Parameters: TypeAlias = SamplingParams | pb.SamplingParams | Mapping[str, Any]
