"""A vocabulary like those of models, for servers that compile grammars: a tokenizer.json with a token for each byte, longer tokens, and
special tokens without visible text."""

import itertools
import json
import pathlib
import re

import numpy as np

#: The schema of the tests' texts.
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["card", "chip", "die"]},
        "name": {"type": "string", "maxLength": 6},
        "stakes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "minItems": 1, "maxItems": 3},
    },
    "required": ["kind", "name", "stakes"],
    "additionalProperties": False,
}
BEGIN, END = 0, 1
#: Pieces of JSON, and some letters.
LONGER = ['{"', '":', '": ', ' "', '", "', '",', '"}', '},', "[[", "]}", " true", "false", "null", "kind", "name", "stakes", "card", "chip", "die",
          "12", "00", "999", "é", "日本", "\\u", '\\"', "\n  "]
LONGER += map("".join, itertools.product("aeiounrst", "bcdehiklmnoprstuw"))


def documented(language):
    """The example in this language on the page about structured output."""
    page = pathlib.Path(__file__).resolve().parents[2] / "docs/structured-output.md"
    (example,) = re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return example


def letters():
    """The characters that represent bytes in such files. Printable bytes represent themselves."""
    others = map(chr, itertools.count(256))
    return [chr(byte) if chr(byte).isprintable() and byte not in (0x20, 0xA0, 0xAD) else next(others) for byte in range(256)]


LETTERS = letters()


def written(text):
    return "".join(LETTERS[byte] for byte in text)


#: Texts by token id. Special tokens have names; they are at both ends of the list.
TEXTS = [b"<begin>", b"<end>", *(bytes([byte]) for byte in range(256)), *(text.encode() for text in LONGER), b"<turn>", b"</think>"]
TURN, THOUGHT = len(TEXTS) - 2, len(TEXTS) - 1
SPECIAL = (BEGIN, END, TURN, THOUGHT)
VOCAB = len(TEXTS)


def tokenizer_json():
    names = [text.decode() if token in SPECIAL else written(text) for token, text in enumerate(TEXTS)]
    assert len(set(names)) == VOCAB
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "pre_tokenizer": level,
        "decoder": level, "added_tokens": [{"id": token, "content": names[token], "special": True, **flags} for token in SPECIAL],
        "model": {"type": "BPE", "vocab": {name: token for token, name in enumerate(names)}, "merges": []}})


def started(serve, folder, *flags):
    """A server with this vocabulary."""
    path = folder / "tokenizer.json"
    path.write_text(tokenizer_json())
    return serve("--grammars=true", f"--vocabulary={path}", *flags)


def text_of(tokens):
    """The visible part of a text."""
    return b"".join(TEXTS[token] for token in tokens if token not in SPECIAL)


def model(tokens):
    """Logits that know nothing of any grammar. They are the same after the same text."""
    random = np.random.default_rng([5, len(tokens), *tokens[-2:]])
    return (3 * random.standard_normal(VOCAB)).astype("f4")
