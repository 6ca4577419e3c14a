"""The forms in which arguments may be given and memory is represented. Only type checkers import this module."""

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

#: An array of any numbers.
Array: TypeAlias = npt.NDArray[Any]
#: The memory that rows are in.
Memory: TypeAlias = Array | DeviceArray


class Exported(Protocol):
    """An array of another library, through DLPack."""

    def __dlpack__(self) -> Any: ...


class OnDevice(Protocol):
    """An array on a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class TorchDtype(Protocol):
    """A PyTorch number format."""

    @property
    def is_floating_point(self) -> bool: ...


class Lines(Protocol):
    """Rows that can be counted and iterated over: a list, an array, a tensor."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, at: slice, /) -> Any: ...


class Place(Protocol):
    """The owner of rows, which takes them back."""

    def discard(self, rows: Rows) -> None: ...


#: A number format, by its name or as a library represents it.
Dtype: TypeAlias = str | np.dtype[Any] | type[np.generic] | TorchDtype
#: Numbers that numpy can convert: arrays, tensors on the host, lists, and bytes as they go over the wire.
Numbers: TypeAlias = npt.ArrayLike | Exported | bytes | bytearray | memoryview
#: Whole rows.
Whole: TypeAlias = Numbers | OnDevice | Rows
#: The logits of a step.
Logits: TypeAlias = Whole | TopN | tuple[Whole, TopN] | None
#: Masks of grammars.
Masks: TypeAlias = Numbers | Listing[Numbers | None]
#: One work of a step.
Work: TypeAlias = Sequence | pb.Work
#: All parameters of a sequence.
Parameters: TypeAlias = SamplingParams | pb.SamplingParams | Mapping[str, Any]
