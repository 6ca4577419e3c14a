"""Random rows. Each is determined by a few numbers that can be written down."""

import dataclasses

import numpy as np

from second import orders
from second.drawing import Drawing
from second.params import Params, Text

VOCABS = (1, 2, 5, 20, 60, 200, 600)
# More tokens than KoboldCpp considers.
LARGE = (4000,)
MODES = ("RAW", "PROCESSED", "TEMPERED")
# The token texts of the server's vocabulary. Many are prefixes of others.
TEXTS = tuple(format(token + 2, "b")[1:] for token in range(max(VOCABS)))


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a row reports. `logprobs` is the number of tokens whose logprobs are requested; None means all. `survivors` and the following
    are those of ReportParams."""

    top_n: int = 20
    logprobs: int | None = None
    support: bool = True
    survivors: int = 4096
    entropy: bool = True
    whys: tuple = ()
    state: bool = True
    has_logprobs: bool = True

    @property
    def has_report(self):
        return bool(self.support or self.survivors or self.entropy or self.whys)


def asked(chance):
    """Asks for everything, or for some of it: rows that report less take other paths through the server."""
    if chance.random() < 0.5:
        return Asked()
    if chance.random() < 0.3:
        return NOTHING
    return Asked(
        int(chance.choice([0, 1, 5])), int(chance.choice([0, 0, 3])), bool(chance.random() < 0.5), int(chance.choice([0, 0, 1, 5])),
        bool(chance.random() < 0.3), state=bool(chance.random() < 0.7), has_logprobs=bool(chance.random() < 0.7))


NOTHING = Asked(0, 0, False, 0, False, state=False, has_logprobs=False)


@dataclasses.dataclass(frozen=True)
class Case:
    """A row. Its logits are those of `logits(logits_seed, vocab)`, rounded to the dtype."""

    vocab: int
    eos: list
    dtype: str
    params: Params
    prompt: list
    output: list
    seed: int
    logits_seed: int
    mode: str
    state: dict
    is_masked: bool = False
    asked: Asked = Asked()

    def text(self):
        return Text(self.params, self.prompt, self.output, self.eos, self.seed, self.state, TEXTS)

    def row(self):
        """The row as it is sent."""
        return rounded(logits(self.logits_seed, self.vocab), self.dtype)

    def asking(self, most=64):
        """The same case, which also asks why up to `most` of its tokens were removed."""
        chance = np.random.default_rng(self.logits_seed + 2)
        whys = tuple(chance.permutation(self.vocab)[:most].tolist())
        return dataclasses.replace(self, asked=dataclasses.replace(self.asked, whys=whys))

    def wanted(self):
        """LogprobsParams.token_ids, in random order and with duplicates."""
        if self.asked.logprobs is None:
            return list(range(min(self.vocab, 1000)))
        chance = np.random.default_rng(self.seed)
        return chance.integers(self.vocab, size=self.asked.logprobs).tolist()

    def mask(self):
        return np.random.default_rng(self.logits_seed + 1).random(self.vocab) < 0.6 if self.is_masked else None


def logits(seed, vocab):
    """Logits with ties, large offsets, zeros of both signs, minus infinity, and now and then a NaN or +infinity."""
    chance = np.random.default_rng(seed)
    row = chance.normal(size=vocab) * chance.choice([0.1, 1, 2, 3, 5, 10, 30])
    kind = chance.random()
    if kind < 0.3:
        steps = chance.choice([1, 2, 4, 8])
        row = np.round(row * steps) / steps
    elif kind > 0.96:
        row = row / np.abs(row).max() * 3e38
    elif kind > 0.9:
        row = row + chance.choice([-1000, 1000, 1e4])
    with np.errstate(over="ignore"):
        row = row.astype(np.float32)
    if chance.random() < 0.2:
        row[chance.random(vocab) < chance.choice([0.1, 0.5, 0.95])] = -np.inf
    if chance.random() < 0.1:
        row[chance.integers(vocab)], row[chance.integers(vocab)] = -0.0, 0.0
    for special in (np.nan, np.inf):
        if chance.random() < 0.01:
            row[chance.integers(vocab)] = special
    return row


def rounded(row, dtype):
    """The row in this dtype. bf16 is the upper half of each f32."""
    if dtype == "bf16":
        return (row.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return row.astype({"f32": np.float32, "f16": np.float16}[dtype])


def as_f32_row(sent):
    return (sent.astype(np.uint32) << 16).view(np.float32) if sent.dtype == np.uint16 else sent.astype(np.float32)


def messages(seed, count, rows, params_of, vocabs=VOCABS):
    """`count` messages. The rows of a message have the same vocabulary, dtype and EOS. `params_of` draws the parameters of a row."""
    for number in range(count):
        own = np.random.default_rng([seed, number])
        vocab, dtype = int(own.choice(vocabs)), str(own.choice(["f32", "f32", "f16", "bf16"]))
        eos = own.choice(vocab, min(vocab, own.integers(3)), replace=False).tolist()
        yield [case(int(own.integers(1 << 62)), vocab, eos, dtype, params_of) for _ in range(rows)]


def case(seed, vocab, eos, dtype, params_of):
    drawing = Drawing(seed, vocab, eos)
    params = Params(**params_of(drawing))
    if "min_eos_p" in params or "infill" in params:
        params.pop("ignore_eos", None)
    prompt, output = (drawing.tokens(drawing.one_of(0, 1, 5, 20)) for _ in range(2))
    if params.thinking_budget and drawing.chance(0.6):
        # The text has just begun to think, unless its output ends the thought.
        prompt += params.thinking_budget["start_token_ids"]
    if params.synthid or params.gumbel:
        # The server refuses these with a watermark.
        params.pop("mirostat", None)
        params.update({"temperature": 0.7} if params.temperature == 0 else {})
    if params.max_tokens:
        output = output[: params.max_tokens - 1]
    ending = {*eos, *params.stop_token_ids}
    output = [token for token in output if token not in ending]
    own_seed, logits_seed = drawing.random.getrandbits(64), drawing.random.getrandbits(32)
    return Case(vocab, eos, dtype, params, prompt, output, own_seed, logits_seed, drawing.one_of(*MODES),
                state(drawing, params, len(output)), drawing.chance(0.05), asked(np.random.default_rng(logits_seed + 4)))


def state(drawing, params, position):
    """The initial state of samplers that remember. The server refuses it for greedy rows."""
    given = {}
    if orders.temperature(params, position) > 0 and drawing.chance(0.5):
        if params.mirostat:
            given["mu"] = drawing.random.uniform(0, 12)
        if params.adaptive_target >= 0:
            weight = drawing.random.uniform(0.5, 10)
            given.update(sum=drawing.random.random() * weight, weight=weight)
    return given
