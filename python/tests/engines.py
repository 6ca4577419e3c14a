"""Stand-ins for integration tests without the real packages: the small part of torch that the adapters use, on numpy."""

import sys
import types

import numpy as np


class Tensor(np.ndarray):
    """An array with the interface of a CPU tensor."""

    device = "cpu"

    def copy_(self, other):
        self[:] = other
        return self

    def contiguous(self):
        return np.ascontiguousarray(self)

    def float(self):
        return self

    cpu = float

    def numpy(self):
        return np.asarray(self)

    def argmax_rows(self):
        return np.asarray(self).argmax(1)


def tensor(values):
    """Logits as the engine has them: a torch tensor if torch is installed."""
    values = np.array(values, np.float32)
    torch = sys.modules["torch"]
    return torch.from_numpy(values)


def fake_torch():
    module = types.ModuleType("torch")
    module.from_numpy = lambda array: array.view(Tensor)
    module.tensor = lambda values, device=None, dtype=None: np.asarray(values, dtype).view(Tensor)
    module.int64, module.int32, module.float32 = np.int64, np.int32, np.float32
    return module


def installed(*names):
    """Whether these packages can be imported. Any exception counts as no: packages for GPUs fail in many ways."""
    try:
        for name in names:
            __import__(name)
    except Exception:
        return False
    return True
