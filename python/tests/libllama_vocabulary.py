"""A vocabulary for llama.cpp: a GGUF file that contains nothing else, and the library's object for it. The layouts are those of
include/llama.h 0.5.0 and of GGUF 3."""

import ctypes
import struct
from ctypes import c_bool, c_char_p, c_int32, c_void_p

UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
NORMAL, CONTROL = 1, 3


class ModelParams(ctypes.Structure):
    _fields_ = [
        ("devices", c_void_p), ("tensor_buft_overrides", c_void_p), ("n_gpu_layers", c_int32), ("split_mode", c_int32),
        ("load_mode", c_int32), ("lazy_mode", c_int32), ("main_gpu", c_int32), ("tensor_split", c_void_p), ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p), ("kv_overrides", c_void_p), ("vocab_only", c_bool), ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool), ("no_host", c_bool), ("no_alloc", c_bool), ("load_mtp", c_bool),
    ]


def text(string):
    return struct.pack("<Q", len(string.encode())) + string.encode()


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def array(kind, values):
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def write(path, texts, eos, eot):
    """Writes the texts by token. Two of the tokens end a text and have no visible text."""
    kinds = [CONTROL if token in (eos, eot) else NORMAL for token in range(len(texts))]
    entries = [
        entry("general.architecture", STRING, text("llama")),
        entry("tokenizer.ggml.model", STRING, text("llama")),
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, [text(t) for t in texts])),
        entry("tokenizer.ggml.scores", ARRAY, array(FLOAT32, [struct.pack("<f", 0)] * len(texts))),
        entry("tokenizer.ggml.token_type", ARRAY, array(INT32, [struct.pack("<i", kind) for kind in kinds])),
        entry("tokenizer.ggml.eos_token_id", UINT32, struct.pack("<I", eos)),
        entry("tokenizer.ggml.eot_token_id", UINT32, struct.pack("<I", eot)),
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))


def load(library, path):
    """The vocabulary as `infill` and `dry` take it. It lives as long as the process."""
    loaded = library.loaded
    loaded.llama_model_default_params.restype = ModelParams
    loaded.llama_model_load_from_file.argtypes, loaded.llama_model_load_from_file.restype = [c_char_p, ModelParams], c_void_p
    loaded.llama_model_get_vocab.argtypes, loaded.llama_model_get_vocab.restype = [c_void_p], c_void_p
    params = loaded.llama_model_default_params()
    params.vocab_only = True
    model = loaded.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp does not load {path}"
    return loaded.llama_model_get_vocab(model)
