"""Makes the tokenizers of this folder, and the texts that the library gives their tokens: `make.py FOLDER`, with Hugging Face's
tokenizers 0.23.3. They are trained on the examples' texts and a line in other scripts."""

import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXTS = [(ROOT / "examples" / "data" / name).read_text() for name in ("fables.txt", "tales.txt")]
TEXTS += ["naïve café — “quoted” \t tabs\n\nlines 日本語 😀 «x» ñandú\u00ad"] * 50


def byte_level():
    made = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=360, show_progress=False, initial_alphabet=alphabet))
    made.add_special_tokens([AddedToken("<|end|>"), AddedToken("<|middle|>")])
    made.add_tokens([AddedToken("Ġ said"), AddedToken("    ")])
    return made


def byte_fallback():
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ways = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(ways)
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, max_token_length=6, special_tokens=special)
    made.train_from_iterator(TEXTS, trainer)
    # Bytes are pieces, not added tokens, as in the files of real models.
    file = json.loads(made.to_str())
    file["added_tokens"] = file["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(file))


def unigram():
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = {"unk_token": "<unk>", "special_tokens": ["<unk>", "</s>"]}
    made.train_from_iterator(TEXTS, trainers.UnigramTrainer(vocab_size=250, show_progress=False, **special))
    return made


def text(made, added, token):
    if token in added:
        return None if added[token]["special"] else added[token]["content"]
    # After another piece, so that no leading space is removed.
    return made.decoder.decode(["x", made.id_to_token(token)])[1:]


where, texts = pathlib.Path(sys.argv[1]), {}
for make in (byte_level, byte_fallback, unigram):
    made = make()
    file = json.loads(made.to_str())
    added = {token["id"]: token for token in file["added_tokens"]}
    (where / f"{make.__name__}.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n")
    texts[make.__name__] = [text(made, added, token) for token in range(made.get_vocab_size())]
(where / "texts.json").write_text(json.dumps(texts, ensure_ascii=False, separators=(",", ":")) + "\n")
