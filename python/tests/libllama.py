"""llama.cpp's own samplers, called through its C interface (include/llama.h of 0.5.0) without a model. CROUPIER_LIBLLAMA names the
library."""

import ctypes
import os
import platform
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import numpy as np

VERSION = "0.5.0"
TOKEN = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])


class TokenDataArray(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t), ("selected", c_int64), ("sorted", c_bool)]


class LogitBias(ctypes.Structure):
    _fields_ = [("token", c_int32), ("bias", c_float)]


class ChainParams(ctypes.Structure):
    _fields_ = [("no_perf", c_bool)]


class Vector(ctypes.Structure):
    """A std::vector of libstdc++: pointers to the begin and end of its elements and to the end of its storage."""

    _fields_ = [("begin", c_void_p), ("end", c_void_p), ("room", c_void_p)]

    @classmethod
    def of(cls, elements):
        at = ctypes.addressof(elements)
        return cls(at, at + ctypes.sizeof(elements), at + ctypes.sizeof(elements))


# The argument types of llama_sampler_init_….
SAMPLERS = {
    "top_k": [c_int32],
    "top_p": [c_float, c_size_t],
    "min_p": [c_float, c_size_t],
    "typical": [c_float, c_size_t],
    "temp": [c_float],
    "temp_ext": [c_float, c_float, c_float],
    "xtc": [c_float, c_float, c_size_t, c_uint32],
    "top_n_sigma": [c_float],
    "mirostat": [c_int32, c_uint32, c_float, c_float, c_int32],
    "mirostat_v2": [c_uint32, c_float, c_float],
    "penalties": [c_int32, c_int32, c_float, c_float, c_float],
    "adaptive_p": [c_float, c_float, c_uint32],
    "logit_bias": [c_int32, c_int32, POINTER(LogitBias)],
    "infill": [c_void_p],
    "dry": [c_void_p, c_float, c_float, c_int32, c_int32, POINTER(ctypes.c_char_p), c_size_t],
    "grammar": [c_void_p, c_char_p, c_char_p],
}
# The constructor that takes breakers as tokens, made for llama.cpp's own tests: a C++ function, by its mangled name.
DRY = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, c_void_p)


def why_not():
    """The reason why there is no library, or None."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"the library is built for x86-64, this is {platform.machine()}"
    if not os.environ.get("CROUPIER_LIBLLAMA"):
        return "CROUPIER_LIBLLAMA names no library of llama.cpp; scripts/python-tests gets it with npm"
    return None


def declare(library, name, arguments, result=None):
    function = library[name]
    function.argtypes, function.restype = arguments, result
    return function


class Library:
    def __init__(self, path):
        self.loaded = library = ctypes.CDLL(path)
        version = declare(library, "llama_version", [], ctypes.c_char_p)().decode()
        assert version.split("-")[0] == VERSION, f"{path} is llama.cpp {version}; these are the signatures of {VERSION}"
        self.quiet = LOG(lambda *_: None)
        declare(library, "llama_log_set", [LOG, c_void_p])(self.quiet, None)
        self.init = {name: declare(library, f"llama_sampler_init_{name}", types, c_void_p) for name, types in SAMPLERS.items()}
        self.init_dry = declare(library, DRY, [c_float, c_float, c_int32, c_int32, POINTER(Vector)], c_void_p)
        self.chain_init = declare(library, "llama_sampler_chain_init", [ChainParams], c_void_p)
        self.chain_add = declare(library, "llama_sampler_chain_add", [c_void_p, c_void_p])
        self.apply = declare(library, "llama_sampler_apply", [c_void_p, POINTER(TokenDataArray)])
        self.accept = declare(library, "llama_sampler_accept", [c_void_p, c_int32])
        self.clone = declare(library, "llama_sampler_clone", [c_void_p], c_void_p)
        self.free = declare(library, "llama_sampler_free", [c_void_p])

    def dry(self, multiplier, base, allowed_length, last_n, breakers):
        tokens = [(c_int32 * len(breaker))(*breaker) for breaker in breakers]
        vectors = (Vector * len(tokens))(*map(Vector.of, tokens))
        return self.init_dry(multiplier, base, allowed_length, last_n, ctypes.byref(Vector.of(vectors)))

    def dry_at_texts(self, vocabulary, multiplier, base, allowed_length, last_n, breakers):
        texts = (ctypes.c_char_p * len(breakers))(*(breaker.encode() for breaker in breakers))
        return self.init["dry"](vocabulary, multiplier, base, allowed_length, last_n, texts, len(breakers))

    def logit_bias(self, vocab, biases):
        return self.init["logit_bias"](vocab, len(biases), (LogitBias * len(biases))(*biases.items()))

    def make(self, name, *arguments):
        made = getattr(self, name, self.init.get(name))(*arguments)
        assert made, f"llama.cpp makes no {name} of {arguments}"
        return made


class Chain:
    """A chain of samplers. Each is given as a name and the arguments of its llama_sampler_init_…."""

    def __init__(self, library, *samplers):
        self.library, self.chain = library, library.chain_init(ChainParams(True))
        for name, *arguments in samplers:
            library.chain_add(self.chain, library.make(name, *arguments))

    def clone(self):
        """A copy with the current state."""
        clone = Chain.__new__(Chain)
        clone.library, clone.chain = self.library, self.library.clone(self.chain)
        return clone

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.library.free(self.chain)

    def accept(self, tokens):
        for token in tokens:
            self.library.accept(self.chain, token)

    def left(self, row):
        """What the chain leaves of a row of logits: tokens with their logits, and the chosen token if there is one."""
        tokens = np.zeros(len(row), TOKEN)
        tokens["id"], tokens["logit"] = np.arange(len(row)), row
        array = TokenDataArray(tokens.ctypes.data, len(row), -1, False)
        self.library.apply(self.chain, ctypes.byref(array))
        kept = np.frombuffer(ctypes.string_at(array.data, array.size * TOKEN.itemsize), TOKEN)
        return kept, int(kept["id"][array.selected]) if array.selected >= 0 else None

    def probabilities(self, row):
        """The probability of every token in f64, by the remaining logits, and the chosen token."""
        kept, chosen = self.left(row)
        weights = np.exp(kept["logit"].astype(np.float64) - kept["logit"].max())
        probabilities = np.zeros(len(row))
        probabilities[kept["id"]] = weights / weights.sum()
        return probabilities, chosen
