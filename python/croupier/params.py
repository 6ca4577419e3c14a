"""Parameters, as the schema documents them. Made by python/generate.py; do not change it here.

A field that is None is absent: the stream's default holds, then the server's. An empty list is absent on the wire too.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex, TypedDict

from ._params import Params

if TYPE_CHECKING:
    from .schema import pb

__all__ = ["AcceptanceParams", "AcceptanceRule", "DraftLengthParams", "EngineOrder", "GrammarParams", "GumbelParams",
           "KgwParams", "LengthPenaltyParams", "LogitBias", "LogprobsMode", "LogprobsParams", "NoRepeatNgramParams",
           "ProposerKind", "ProposerParams", "RepetitionDetectionParams", "ReportParams", "SamplerKind",
           "SamplingFields", "SamplingParams", "SeedingScheme", "SequenceBias", "SynthidParams", "ThinkingBudgetParams",
           "TokenBanRange", "TokenSequence", "WatermarkParams"]


class LogprobsMode(enum.IntEnum):
    """Which distribution logprobs describe."""

    UNSPECIFIED = 0
    """RAW."""
    RAW = 1
    """The model's own: softmax of the logits as sent, at temperature 1."""
    PROCESSED = 2
    """What was drawn from: after every mask, penalty, the temperature and every filter. A token that was filtered out
    has logprob -infinity. Greedy: the emitted token has probability 1."""
    TEMPERED = 3
    """What the filters see, as in SGLang: after every mask, bias, penalty and the temperature, before any filter and
    whatever the order says. Dynamic temperature and smoothing count as filters. Greedy: at temperature 1."""


class AcceptanceRule(enum.IntEnum):
    """How draft tokens are accepted."""

    UNSPECIFIED = 0
    """REJECTION."""
    REJECTION = 1
    """Standard rejection sampling (Leviathan et al. 2023, Chen et al. 2023). Lossless."""
    GREEDY = 2
    """Accept while the draft token is the target's most likely one. The token after the accepted ones is the most
    likely one too, whatever the temperature. Lossless for greedy sequences."""
    BLOCK = 3
    """Block verification (Sun et al. 2025). Lossless; accepts at least as many tokens as REJECTION in expectation."""
    TYPICAL = 4
    """Typical acceptance (Medusa). Not lossless."""
    RELAXED = 5
    """Relaxed acceptance (TensorRT-LLM): a token that is nearly as likely as the first is accepted. Not lossless,
    unless relaxed_in_thinking_only is set and the text does not think."""
    SYNTHETIC = 6
    """A fixed rate for draft tokens that the target could emit, for load tests. Not lossless."""


class ProposerKind(enum.IntEnum):
    """How a proposer inside the sidecar finds draft tokens."""

    UNSPECIFIED = 0
    """Not allowed."""
    NGRAM = 1
    """Prompt lookup: what followed the last tokens where they appeared before."""
    SUFFIX = 2
    """Suffix matching: what followed most often, as far as it is likely."""
    GRAMMAR = 3
    """Jump-forward: tokens that spell the bytes that SamplingParams.grammar forces next, spelled as BPE merges them
    (the pair that makes the token of the lowest id first), without the last tokens that could be spelled another way
    with what follows. No tokens where nothing is forced, or where the sequence has no grammar or one in Lark with
    max_tokens or stop."""


class SamplerKind(enum.IntEnum):
    """A sampler that has a place in the order."""

    UNSPECIFIED = 0
    TEMPERATURE = 1
    """temperature. Dynamic temperature takes this place where it is on and not listed by itself."""
    SMOOTHING = 2
    """smoothing_factor and smoothing_curve."""
    TOP_N_SIGMA = 3
    TOP_H = 4
    TOP_K = 5
    TOP_P = 6
    MIN_P = 7
    TYPICAL_P = 8
    TFS = 9
    TOP_A = 10
    EPSILON_CUTOFF = 11
    ETA_CUTOFF = 12
    XTC = 13
    P_LESS = 14
    MIROSTAT = 15
    ADAPTIVE_P = 16
    """adaptive_target and adaptive_decay."""
    SKEW = 17
    INFILL = 18
    DYNAMIC_TEMPERATURE = 19
    """dynatemp_high, dynatemp_low and dynatemp_exponent, beside temperature."""
    MIN_EOS_P = 20
    MIN_K = 21
    """min_k and min_k_tau."""


class EngineOrder(enum.IntEnum):
    """The samplers of an engine in its order, with its own rules for ties and thresholds as far as docs/engines.md
    lists them ("Engines' rules")."""

    UNSPECIFIED = 0
    """As ENGINE_ORDER_CROUPIER."""
    CROUPIER = 1
    """min_eos_p, temperature, smoothing, top_n_sigma, min_k, top_h, top_k, top_p, min_p, typical_p, tfs, top_a,
    epsilon_cutoff, eta_cutoff, p_less, xtc, mirostat, infill, adaptive_p, skew."""
    LLAMA_CPP = 2
    """top_n_sigma, top_k, typical_p, top_p, min_p, xtc, infill, temperature, adaptive_p. With mirostat: temperature,
    mirostat. typical_p goes on until it has more than its share. DRY comes after the penalties. Sets
    penalties_count_prompt."""
    VLLM = 3
    """temperature, min_p, top_k, top_p. A temperature above 0 is at least 0.01."""
    TRANSFORMERS = 4
    """min_eos_p, temperature, top_h, top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff. top_k and typical_p
    also keep tokens that are equal to the last one they keep."""
    TEXT_GENERATION_WEBUI = 5
    """top_n_sigma, temperature, dynamic temperature, smoothing, top_k, top_p, typical_p, epsilon_cutoff, eta_cutoff,
    tfs, top_a, min_p, adaptive_p, mirostat, xtc. The order ends with adaptive_p or mirostat where one of them is on.
    Ties as with TRANSFORMERS. tfs sees the whole vocabulary, with removed tokens as zeros. xtc does nothing where it
    would remove one of xtc_ignore_token_ids. DRY comes after the penalties. Sets penalties_count_prompt."""
    EXLLAMA = 6
    """ExLlamaV2: smoothing, temperature, top_k, top_p, top_a, min_p, tfs, typical_p, mirostat, dynamic temperature,
    xtc, skew. A temperature up to 0.01 is greedy, and xtc_expected is on. DRY comes after the penalties. Sets
    penalties_count_prompt and bias_after_penalties."""
    SGLANG = 7
    """SGLang: temperature, top_p, top_k, so that both cut one distribution. With min_p: temperature, top_k, top_p,
    min_p. Sets subtract_penalties_first and bias_after_penalties."""
    KOBOLD_CPP = 8
    """top_k, top_a, tfs, typical_p, top_p, min_p, temperature, smoothing, top_n_sigma, xtc, adaptive_p. With mirostat:
    temperature, smoothing, mirostat. All of them see only the first 3,000 tokens. tfs keeps one token fewer, typical_p
    goes on until it has more than its share. DRY penalises its breakers too, and does nothing until more than
    dry_allowed_length tokens follow the last of them. Sets penalties_count_prompt."""
    EXLLAMA_V3 = 9
    """temperature, min_p, top_k, top_p, xtc, adaptive_p. DRY comes after the penalties. xtc_expected is on. Sets
    penalties_count_prompt."""
    MLX = 10
    """mlx-lm: top_p, min_p, xtc, top_k, temperature. Sets penalties_count_prompt."""
    TENSORRT_LLM = 11
    """temperature, min_p, top_k, top_p. A temperature up to 1e-4 is greedy. top_k also keeps tokens that are equal to
    the last one it keeps. Sets penalties_count_prompt."""
    MISTRAL_RS = 12
    """temperature, top_k, top_p, min_p. min_p keeps what is above its threshold, and at 1 it is off. Sets
    subtract_penalties_first and bias_after_penalties."""


class SeedingScheme(enum.IntEnum):
    """What a greenlist depends on."""

    UNSPECIFIED = 0
    """As SEEDING_SCHEME_LEFTHASH."""
    LEFTHASH = 1
    """All tokens of the context."""
    SELFHASH = 2
    """For each token, that token and one of the tokens of the context. More of the mark is left when some tokens are
    changed."""


@dataclass(frozen=True, kw_only=True)
class LogitBias(Params["pb.LogitBias"]):
    """A bias on one token."""

    token_id: int | SupportsIndex = 0
    """The token."""
    bias: float | SupportsFloat = 0.0
    """Added to its logit. Range -1e6 .. 1e6; to forbid a token use banned_token_ids."""


@dataclass(frozen=True, kw_only=True)
class TokenSequence(Params["pb.TokenSequence"]):
    """Some tokens in a row."""

    token_ids: Sequence[int | SupportsIndex] | None = None
    """1 .. 64 token ids."""


@dataclass(frozen=True, kw_only=True)
class LogprobsParams(Params["pb.LogprobsParams"]):
    """What to report about each token."""

    top_n: int | SupportsIndex = 0
    """How many of the most likely tokens to list in addition to the emitted one. 0: none. At most
    Limits.max_top_logprobs."""
    mode: LogprobsMode | int | str | None = None
    """Which distribution. LOGPROBS_MODE_UNSPECIFIED: RAW."""
    token_ids: Sequence[int | SupportsIndex] | None = None
    """Also the logprobs of these tokens. At most 1,024."""


@dataclass(frozen=True, kw_only=True)
class AcceptanceParams(Params["pb.AcceptanceParams"]):
    """How draft tokens are accepted. It is an error to set a field of another rule than the chosen one."""

    rule: AcceptanceRule | int | str | None = None
    """The rule. ACCEPTANCE_RULE_UNSPECIFIED: REJECTION."""
    typical_epsilon: float | SupportsFloat | None = None
    """TYPICAL: accept if the target probability is at least min(epsilon, alpha * exp(-entropy)). Range 0 .. 1. Absent:
    0.09."""
    typical_alpha: float | SupportsFloat | None = None
    """TYPICAL: alpha; see typical_epsilon. Range 1e-6 .. 1e6. Absent: 0.3."""
    relaxed_top_n: int | SupportsIndex | None = None
    """RELAXED: accept if the draft token is among this many first tokens of the target, and meets relaxed_delta. Range
    1 .. 1,024. Absent: 10."""
    relaxed_delta: float | SupportsFloat | None = None
    """RELAXED: the target probability of the draft token must be at least the largest minus this. Greedy sequences are
    judged at temperature 1, with top_k, top_p and min_p. Range 0 .. 1. Absent: 0.6."""
    synthetic_rate: float | SupportsFloat | None = None
    """SYNTHETIC: accept each draft token with this probability. Range 0 .. 1. Required for that rule."""
    relaxed_in_thinking_only: bool | None = None
    """RELAXED: relax only inside thinking, as thinking_budget says where it begins and ends. Elsewhere, and everywhere
    without thinking_budget, a draft token is accepted if it is the one that sample work would draw there, so that the
    text is that of the same seed without drafts. Absent: false, relax everywhere."""


@dataclass(frozen=True, kw_only=True)
class ProposerParams(Params["pb.ProposerParams"]):
    """A proposer inside the sidecar. It sees the sequence's prompt and output, and its predicted output. Memory for
    each of their tokens with the defaults: 31 bytes (NGRAM), 44 bytes (SUFFIX), none (GRAMMAR). In a text with a
    grammar, NGRAM and SUFFIX propose no further than the grammar allows; where what the grammar forces is longer, they
    propose that, as GRAMMAR does. Every kind proposes the tokens that a spent thinking_budget forces, and its own
    proposals end where these begin."""

    kind: ProposerKind | int | str | None = None
    """How draft tokens are found. Required where anything is set."""
    max_draft_tokens: int | SupportsIndex | None = None
    """Most draft tokens at once. Range 1 .. 64. Absent: 8."""
    min_match: int | SupportsIndex | None = None
    """Shortest match: how many of the last tokens must appear earlier in the text. Range 1 .. max_match. Absent: NGRAM
    2, SUFFIX 1. GRAMMAR does not use it, nor max_match."""
    max_match: int | SupportsIndex | None = None
    """Longest match: how many of the last tokens are compared. Range 1 .. 64. Absent: NGRAM 5, SUFFIX 24."""
    min_token_prob: float | SupportsFloat | None = None
    """SUFFIX: the draft ends before its probability, as counted in the text, falls below this. Range 0 .. 1. Absent:
    0.1."""


@dataclass(frozen=True, kw_only=True)
class DraftLengthParams(Params["pb.DraftLengthParams"]):
    """What advice on draft length needs to know. The unit of cost is the time of a target step that verifies nothing,
    at the batch size that the worker usually has."""

    draft_cost: float | SupportsFloat = 0.0
    """Time to propose one more draft token. Range 0 .. 10; 0 for proposers inside the sidecar."""
    verify_cost: float | SupportsFloat = 0.0
    """Time that one more target row adds to the step. Range 0 .. 1."""
    max_draft_tokens: int | SupportsIndex | None = None
    """The longest draft that is ever advised, in tokens. Range 1 .. 64. Absent: 16. 0: no advice, whatever the stream's
    default."""


@dataclass(frozen=True, kw_only=True)
class NoRepeatNgramParams(Params["pb.NoRepeatNgramParams"]):
    """A token may not follow the size - 1 tokens before it if it followed the same tokens earlier in the text."""

    size: int | SupportsIndex = 0
    """Tokens of an n-gram. Range 1 .. 64; with 1 no token comes twice. 0: off."""
    window: int | SupportsIndex = 0
    """Only n-grams that lie in this many of the last tokens count. Range 0 .. 32,768; 0: 32,768."""
    whitelist_token_ids: Sequence[int | SupportsIndex] | None = None
    """Tokens that may always follow. At most 4,096."""
    prompt_size: int | SupportsIndex = 0
    """No n-gram of the prompt with this many tokens comes again, wherever in the prompt it is: a token is banned if it
    follows, in the prompt, the tokens that the text ends with. As Hugging Face's encoder_no_repeat_ngram_size. Range 1
    .. 64; 0: off."""


@dataclass(frozen=True, kw_only=True)
class LengthPenaltyParams(Params["pb.LengthPenaltyParams"]):
    """When the output has n tokens, and n is at least start, |x| * (factor ^ (n - start) - 1) is added to the logit x
    of each of the stream's eos_token_ids."""

    start: int | SupportsIndex = 0
    """The number of output tokens from which on it applies."""
    factor: float | SupportsFloat = 0.0
    """Above 1 texts end earlier, below 1 later. Range 0.01 .. 100; 1: off."""


@dataclass(frozen=True, kw_only=True)
class SequenceBias(Params["pb.SequenceBias"]):
    """Where prompt and output end with all of these tokens but the last, the bias is added to the logit of the last."""

    token_ids: Sequence[int | SupportsIndex] | None = None
    """1 .. 64 token ids; a single one is biased everywhere."""
    bias: float | SupportsFloat = 0.0
    """Range -1e6 .. 1e6; the biases of the same token add up."""


@dataclass(frozen=True, kw_only=True)
class TokenBanRange(Params["pb.TokenBanRange"]):
    """Tokens that may not be emitted at some positions. Position 0 is the first output token."""

    token_ids: Sequence[int | SupportsIndex] | None = None
    """The tokens. At most 4,096."""
    start: int | SupportsIndex = 0
    """The first position."""
    length: int | SupportsIndex = 0
    """How many positions; at least 1."""


@dataclass(frozen=True, kw_only=True)
class RepetitionDetectionParams(Params["pb.RepetitionDetectionParams"]):
    """What counts as a loop: the output ends with min_count repetitions of a pattern of tokens in a row. No text ends
    before min_tokens because of this."""

    max_pattern_size: int | SupportsIndex = 0
    """Longest pattern, in tokens. Range 1 .. 256; 0: off."""
    min_pattern_size: int | SupportsIndex | None = None
    """Shortest pattern, in tokens. Range 1 .. max_pattern_size. Absent: 1."""
    min_count: int | SupportsIndex = 0
    """How often the pattern must occur. At least 2; times max_pattern_size at most 16,384."""


@dataclass(frozen=True, kw_only=True)
class ThinkingBudgetParams(Params["pb.ThinkingBudgetParams"]):
    """Thinking begins when prompt or output end with start_token_ids, and is over when they end with end_token_ids or
    one of other_ends. Tokens in between are counted, those of the prompt too. Each stretch of thinking has the whole
    budget. If the stretch is not over when `budget` tokens are spent, the forced tokens are emitted one by one,
    whatever is banned or allowed; their logits must not be -infinity. If the stretch already ends with the first of
    them, the others follow. With the last of them the stretch is over, whether or not they are end_token_ids; an end
    among them does not count. No token of the prompt counts as forced. An empty message: any number of tokens, whatever
    the stream's default.

    temperature, top_k, top_p and min_p replace those of SamplingParams for every token of a stretch, its end included:
    thinking and answer may be drawn differently in one text, even where drafts cross from one to the other. A field
    that is absent here has the value that holds elsewhere. With one of them set, budget must not be 0, since nothing
    would be drawn with it. If a sequence, or its preset, gives one of the four fields of SamplingParams and no
    thinking_budget, that field also holds in the thinking that the sequence inherits from a preset, its stream or the
    server."""

    start_token_ids: Sequence[int | SupportsIndex] | None = None
    """Tokens that begin thinking. 1 .. 64 token ids. Required where anything is set."""
    end_token_ids: Sequence[int | SupportsIndex] | None = None
    """Tokens that end thinking. 1 .. 64 token ids. Required where anything is set."""
    budget: int | SupportsIndex = 0
    """How many tokens a stretch may spend, including those of an end that the text reaches by itself. Forced ones come
    on top. 0: none; 4294967295: any number."""
    forced_token_ids: Sequence[int | SupportsIndex] | None = None
    """What is emitted when the budget is spent. At most 64 token ids. Empty: end_token_ids."""
    other_ends: Sequence[TokenSequence | pb.TokenSequence | Mapping[str, Any] | Sequence[int | SupportsIndex]] | None = None
    """Sequences that end thinking as end_token_ids do, such as the beginning of a tool call. At most 8, of 1 .. 64
    token ids each."""
    temperature: float | SupportsFloat | None = None
    """Temperature while the text thinks. 0: greedy, or 1e-5 .. 1e5. Not together with temperature_tokens, and only 0
    with a dynatemp_high that takes its place. Must be above 0 with watermark.synthid and watermark.gumbel; with
    mirostat and adaptive_target it is 0 where the temperature of the rest is 0, and nowhere else."""
    top_k: int | SupportsIndex | None = None
    """top_k while the text thinks. 0: off."""
    top_p: float | SupportsFloat | None = None
    """top_p while the text thinks. Range 0 .. 1; 1: off. Not together with top_p_decay."""
    min_p: float | SupportsFloat | None = None
    """min_p while the text thinks. Range 0 .. 1; 0: off."""


@dataclass(frozen=True, kw_only=True)
class ReportParams(Params["pb.ReportParams"]):
    """What to say about how each token was chosen: for training that needs the support, and for finding out why a token
    did not come. Nothing set: off, whatever the stream's default.

    It costs another look at every token with probability; with why_not_token_ids it costs as much as sorting the row,
    so that field is for debugging. The CPU does this work, on a server with a GPU too. why_not_token_ids may explain at
    most 1,048,576 logits (rows times vocab_size) in a step; further work gets ROW_STATUS_INVALID_WORK."""

    support_size: bool = False
    """Say how many tokens could have been drawn. Report.support_size is also there with any of the other fields."""
    max_surviving_token_ids: int | SupportsIndex = 0
    """List up to this many of them. Range 0 .. 4,096."""
    entropy: bool = False
    """Say how uncertain the choice was."""
    why_not_token_ids: Sequence[int | SupportsIndex] | None = None
    """Say what removed each of these tokens. At most 64."""


@dataclass(frozen=True, kw_only=True)
class GrammarParams(Params["pb.GrammarParams"]):
    """A grammar for structured output (docs/structured-output.md says what each kind supports). Its text has at most
    65,536 bytes and 2,048 signs of optional or repeated parts (?, *, + and the like); how much has to hold at once for
    the same text is limited, too. A message may have 64 different grammars."""

    json_schema: str | Mapping[str, Any] | bool | None = None
    """A JSON schema, as JSON: a value that is valid under it. "{}" is any JSON value."""
    regex: str | None = None
    """A regular expression, in the syntax of Rust's regex crate, that the whole text matches."""
    lark: str | None = None
    """A grammar in the Lark syntax of llguidance, which may have JSON schemas in it (%json); its rule "start" is the
    whole text."""
    gbnf: str | None = None
    """A grammar in llama.cpp's GBNF, which XGrammar calls EBNF; its rule "root" is the whole text."""
    choices: str | Sequence[str] | None = None
    """Texts, one per line: the text is one of them. Lines end with LF or CRLF; a last one that is empty does not count."""
    start_token_ids: Sequence[int | SupportsIndex] | None = None
    """The grammar begins after the first of these tokens in the output (such as the one that ends thinking), or of
    start_sequences. Before that every token may be emitted. At most 64. If neither is given, it begins at
    start_position."""
    start_sequences: Sequence[TokenSequence | pb.TokenSequence | Mapping[str, Any] | Sequence[int | SupportsIndex]] | None = None
    """Sequences of tokens after which the grammar begins too, such as the beginning of an answer or of a tool call; all
    tokens of one have to be in the output. At most 8, of 1 .. 64 token ids each."""
    start_position: int | SupportsIndex = 0
    """How many tokens of the output come before the grammar, whatever they are. For a text whose thinking ended where
    only its engine can tell: close it, and open it again with its output_token_ids and their number here. Thinking that
    thinking_budget counts is over at this position. The position counts from the output's first token, wherever the
    text is opened again. Not together with start_token_ids or start_sequences. 0: the grammar begins after those, or
    with the output's first token."""


@dataclass(frozen=True, kw_only=True)
class KgwParams(Params["pb.KgwParams"]):
    """KGW (Kirchenbauer et al. 2023): about greenlist_ratio of the vocabulary is green, and green tokens get a bias
    after all penalties. Nothing is marked before prompt and output have context_width tokens."""

    hashing_key: int | SupportsIndex | None = None
    """The secret. Absent: 15,485,863, which everybody knows."""
    greenlist_ratio: float | SupportsFloat | None = None
    """The share of the vocabulary that is green. Range 0.001 .. 0.999, rounded to 2^-16. Absent: 0.25."""
    bias: float | SupportsFloat | None = None
    """Added to the logits of green tokens. Range 0 .. 100. Absent: 2."""
    seeding_scheme: SeedingScheme | int | str | None = None
    """What the greenlist depends on. Absent: SEEDING_SCHEME_LEFTHASH."""
    context_width: int | SupportsIndex | None = None
    """How many tokens the context has. Range 1 .. 8. Absent: 1; 4 for SEEDING_SCHEME_SELFHASH."""


@dataclass(frozen=True, kw_only=True)
class SynthidParams(Params["pb.SynthidParams"]):
    """SynthID-Text (Dathathri et al. 2024), with the g-values of Hugging Face Transformers. The context is taken from
    the output alone, with tokens of id 0 before its first one."""

    keys: Sequence[int | SupportsIndex] | None = None
    """The secret: one key for each layer, 1 to 64, all different; 20 to 30 are usual. Required."""
    ngram_len: int | SupportsIndex | None = None
    """Length of the context and the token together. Range 2 .. 16. Absent: 5."""
    context_history_size: int | SupportsIndex | None = None
    """A context that appeared at one of this many last positions of the output is not marked again; positions that
    skip_first_ngram_calls leaves out do not count. Range 0 .. 16,384; 0: all are marked. Absent: 1,024."""
    sampling_table_size: int | SupportsIndex | None = None
    """Size of the table of g-values, in bits. Range 2 .. 1,048,576. Absent: 65,536."""
    sampling_table_seed: int | SupportsIndex | None = None
    """The seed that the table is made from. Absent: 0."""
    skip_first_ngram_calls: bool = False
    """Do not mark the first ngram_len - 1 tokens."""


@dataclass(frozen=True, kw_only=True)
class GumbelParams(Params["pb.GumbelParams"]):
    """Aaronson's mark: the token is the one with the largest r^(1/p), where p is its probability and r a uniform number
    made from the key, the context and the token. Nothing is marked before prompt and output have context_width tokens.
    """

    key: int | SupportsIndex | None = None
    """The secret. Required."""
    context_width: int | SupportsIndex | None = None
    """How many tokens the context has. Range 1 .. 8. Absent: 4."""
    context_history_size: int | SupportsIndex | None = None
    """As in SynthidParams."""


@dataclass(frozen=True, kw_only=True)
class WatermarkParams(Params["pb.WatermarkParams"]):
    """A mark, by one scheme. Keys are secrets: whoever has one can find the mark, forge it and remove it. The context
    is the tokens before a position, draft tokens included."""

    kgw: KgwParams | pb.KgwParams | Mapping[str, Any] | None = None
    """Green tokens become more likely. Changes what the text says a little. Works with any parameters, greedy too."""
    synthid: SynthidParams | pb.SynthidParams | Mapping[str, Any] | None = None
    """A tournament among the tokens that filters left. Needs a temperature above 0; not with mirostat."""
    gumbel: GumbelParams | pb.GumbelParams | Mapping[str, Any] | None = None
    """The draw follows the key. Needs a temperature above 0, and for drafts ACCEPTANCE_RULE_REJECTION or _BLOCK, under
    which a draft token is accepted if it is the token that the key draws."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams(Params["pb.SamplingParams"]):
    """One sequence's sampling parameters.

    They apply to a row in this order: masks and bans (allowed and banned tokens, token_ban_ranges, bad words,
    no_repeat_ngram, min_tokens, the row's token mask); logit_bias, sequence_bias and DRY; repetition_penalty;
    encoder_repetition_penalty; frequency_penalty and presence_penalty; length_penalty; the greenlist of watermark.kgw;
    the samplers, from temperature to the filters, in the order that sampler_order or engine_order gives; the draw.
    engine_order, subtract_penalties_first and bias_after_penalties may have another order of biases, DRY and penalties.

    The order of tokens is logit descending, then token id ascending, so ties have one answer. At least one token
    survives every filter.

    A field that is absent, or a list that is empty, takes the stream's default, then the server's. Each field gives the
    server's default, which the server's configuration may change."""

    temperature: float | SupportsFloat | None = None
    """Logits are divided by it. 0: greedy (the largest logit, smallest id on ties), and the other samplers have nothing
    left to do. Range 0, or 1e-5 .. 1e5. Server default 1. Thinking may have another temperature: thinking_budget."""
    top_k: int | SupportsIndex | None = None
    """Keep exactly the first k tokens of the order. 0: off; larger than the vocabulary: off. Server default 0."""
    top_p: float | SupportsFloat | None = None
    """Keep the smallest prefix of the order whose probability reaches top_p of what is left; the token that crosses
    stays. Range 0 .. 1; 1: off; 0 keeps one token. Server default 1."""
    min_p: float | SupportsFloat | None = None
    """Keep tokens with at least min_p times the probability of the most likely one. Range 0 .. 1; 0: off; 1 keeps the
    most likely and its ties. Server default 0."""
    repetition_penalty: float | SupportsFloat | None = None
    """For tokens in the prompt or the output: positive logits are divided by it, others multiplied. Range 1e-4 .. 1e4;
    1: off. Server default 1."""
    frequency_penalty: float | SupportsFloat | None = None
    """Subtracted once per occurrence in the output; with penalties_count_prompt also per occurrence in the prompt.
    Range -1e4 .. 1e4; 0: off. Server default 0."""
    presence_penalty: float | SupportsFloat | None = None
    """Subtracted once if the token is in the output, or with penalties_count_prompt in the prompt. Range -1e4 .. 1e4;
    0: off. Server default 0."""
    logit_bias: Sequence[LogitBias | pb.LogitBias | Mapping[str, Any]] | Mapping[int, float | SupportsFloat] | None = None
    """Added to single logits. No token twice. Server default: none."""
    allowed_token_ids: Sequence[int | SupportsIndex] | None = None
    """Only these tokens may be emitted. At most vocab_size. Server default: all."""
    banned_token_ids: Sequence[int | SupportsIndex] | None = None
    """These tokens may not be emitted; wins over allowed_token_ids. At most vocab_size. Server default: none."""
    bad_words: Sequence[TokenSequence | pb.TokenSequence | Mapping[str, Any] | Sequence[int | SupportsIndex]] | None = None
    """Token sequences that may not be completed: the last token is banned when the output ends with the tokens before
    it. A sequence of one token is a ban. At most 1,024. Server default: none."""
    min_tokens: int | SupportsIndex | None = None
    """EOS and stop tokens are banned until the output has this many tokens. Must not exceed max_tokens, unless that is
    0. Server default 0."""
    max_tokens: int | SupportsIndex | None = None
    """The sequence ends with FINISH_REASON_MAX_TOKENS when its output has this many tokens. 0: no limit. Server default
    0."""
    stop_token_ids: Sequence[int | SupportsIndex] | None = None
    """Emitting one of these ends the sequence with FINISH_REASON_STOP_TOKEN. At most 64. Server default: none."""
    ignore_eos: bool | None = None
    """The stream's eos_token_ids do not end the sequence, and are not banned by min_tokens. Server default false."""
    seed: int | SupportsIndex | None = None
    """Seed of every random decision of the sequence. Absent: the server chooses one and reports it. A seed in the
    stream's default parameters is used for each text that gives none, so texts with the same rows are alike."""
    logprobs: LogprobsParams | pb.LogprobsParams | Mapping[str, Any] | None = None
    """What to report in addition to the token. Server default: only the token. If the stream's default asks for
    logprobs, a sequence can ask for less, but always gets the logprob of the token."""
    acceptance: AcceptanceParams | pb.AcceptanceParams | Mapping[str, Any] | None = None
    """How draft tokens are accepted. Server default: rejection sampling (lossless)."""
    proposer: ProposerParams | pb.ProposerParams | Mapping[str, Any] | None = None
    """Propose draft tokens from the sequence's own tokens, so that no draft model is needed. Each reply to sample or
    verify work carries them in WorkResult.proposed_token_ids, to be verified with DeterministicDraft. Server default:
    none. An empty message: none, whatever the stream's default."""
    draft_length: DraftLengthParams | pb.DraftLengthParams | Mapping[str, Any] | None = None
    """Say how many draft tokens are worthwhile, in WorkResult.advised_draft_length. Server default: no advice."""
    dynatemp_low: float | SupportsFloat | None = None
    """Dynamic temperature: from low, where one token has all probability, to high, where all are equally likely. In
    between it is low + (high - low) * s ^ exponent, where s is the entropy's share of the largest possible entropy.
    Below 1e-5 it is 1e-5. It takes the place of temperature, unless the order has a place for both. temperature 0 is
    greedy all the same.

    This field is low. Range 0 .. dynatemp_high; without that it has no effect. Server default 0."""
    dynatemp_high: float | SupportsFloat | None = None
    """The temperature where all tokens are equally likely; see dynatemp_low. Range 0 (off), or 1e-5 .. 1e5. Server
    default 0."""
    dynatemp_exponent: float | SupportsFloat | None = None
    """The exponent; see dynatemp_low. 0: the temperature is dynatemp_high. Range 0 .. 100. Server default 1."""
    temperature_end: float | SupportsFloat | None = None
    """The temperature moves in a straight line from temperature to temperature_end, which it reaches after
    temperature_tokens tokens of output. Range 1e-5 .. 1e5. Server default 1."""
    temperature_tokens: int | SupportsIndex | None = None
    """The number of output tokens after which temperature_end is reached. Needs a temperature above 0, and cannot be
    combined with dynatemp_high. 0: off. Server default 0."""
    smoothing_factor: float | SupportsFloat | None = None
    """Quadratic smoothing: with d the distance to the largest logit over the temperature so far, logits become

    -(3 - curve) / 2 * factor * d^2 + (curve - 1) / 2 * factor * d^3

    Range 0 .. 100; 0: off. Server default 0."""
    smoothing_curve: float | SupportsFloat | None = None
    """The curve of smoothing_factor. Range 1 .. 10; 1: quadratic. Server default 1."""
    typical_p: float | SupportsFloat | None = None
    """Keep the tokens whose surprise is nearest to the entropy, until they have this probability; the one that crosses
    stays. Range 0 .. 1; 1: off. Server default 1."""
    tfs: float | SupportsFloat | None = None
    """Tail-free sampling (z): keep the tokens before this share of the curvature of sorted probabilities. Range 0 .. 1;
    1: off. Server default 1."""
    top_a: float | SupportsFloat | None = None
    """Keep tokens with a probability of at least top_a times the square of the largest. Range 0 .. 1e4; 0: off. Server
    default 0."""
    top_n_sigma: float | SupportsFloat | None = None
    """Keep logits of at least the largest minus this many standard deviations. Range -1e4 .. 1e4; 0 and less: off.
    Server default 0."""
    epsilon_cutoff: float | SupportsFloat | None = None
    """Keep probabilities of at least this. Range 0 .. 1; 0: off. Server default 0."""
    eta_cutoff: float | SupportsFloat | None = None
    """Keep probabilities of at least the smaller of eta_cutoff and sqrt(eta_cutoff) * exp(-entropy). Range 0 .. 1; 0:
    off. Server default 0."""
    top_h: float | SupportsFloat | None = None
    """Of the first 100 tokens, keep the prefix with at most this share of their entropy. Range 0 .. 1; 0: off. Server
    default 0."""
    xtc_probability: float | SupportsFloat | None = None
    """Exclude top choices (XTC): with this probability at each position, all tokens with at least xtc_threshold of the
    probability are removed except the least likely of them. xtc_ignore_token_ids are never among them. Range 0 .. 1; 0:
    off. Server default 0."""
    xtc_threshold: float | SupportsFloat | None = None
    """The share of the probability that makes a token a top choice for XTC. Range 0 .. 1; above 0.5 XTC can do nothing.
    Server default 0.1."""
    xtc_ignore_token_ids: Sequence[int | SupportsIndex] | None = None
    """Tokens that XTC never counts as top choices. At most 1,024. Server default: none."""
    min_keep: int | SupportsIndex | None = None
    """No filter leaves fewer tokens than this, where there are as many. Range 1 .. 1,048,576. Server default 1."""
    sampler_order: Sequence[SamplerKind | int | str] | None = None
    """The order of the samplers: every sampler that is on, each once. Those that are off may be left out. The rules for
    ties and thresholds are those of engine_order. Server default: the order of engine_order."""
    engine_order: EngineOrder | int | str | None = None
    """The order and the rules of an engine, or with sampler_order its rules alone. Unless sampler_order is given, it is
    a mistake to turn on a sampler, or a parameter of a sampler, that the engine does not have. Given without
    sampler_order, it also takes the place of a default sampler_order. Server default ENGINE_ORDER_CROUPIER."""
    mirostat: int | SupportsIndex | None = None
    """Mirostat: a limit on surprise that learns from each token, so that surprise stays near mirostat_tau. Version 1
    keeps as many first tokens as that takes by Zipf's law; version 2 keeps the tokens whose surprise is at most the
    limit. Range 0 .. 2; 0: off. Server default 0."""
    mirostat_tau: float | SupportsFloat | None = None
    """The surprise that mirostat aims at, in bits. Range 0 .. 100. Server default 5."""
    mirostat_eta: float | SupportsFloat | None = None
    """Mirostat's learning rate. Range 0 .. 100. Server default 0.1."""
    adaptive_target: float | SupportsFloat | None = None
    """Adaptive-p: favours tokens whose probability is near this target, corrected for the probabilities that the
    previous tokens had. Put a min_p before it. Range 0 .. 1, or below 0, down to -1: off. Server default -1."""
    adaptive_decay: float | SupportsFloat | None = None
    """The share of adaptive-p's average that is left after a token. Range 0 .. 0.99. Server default 0.9."""
    top_p_decay: float | SupportsFloat | None = None
    """Factual nucleus: top_p is multiplied by this with each token. See top_p_min and top_p_reset_token_ids. Range 0 ..
    1; 1: off. Server default 1."""
    top_p_min: float | SupportsFloat | None = None
    """A top_p that decays does not fall below this. Range 0 .. 1. Server default 1e-6."""
    top_p_reset_token_ids: Sequence[int | SupportsIndex] | None = None
    """A top_p that decays starts again at top_p after one of these tokens, such as those that end sentences. At most
    64. Server default: none."""
    p_less: bool | None = None
    """p-less: keep probabilities of at least the sum of the squares of all probabilities. Server default false."""
    dry_multiplier: float | SupportsFloat | None = None
    """DRY makes a token less likely if it would extend a repeat, the more so the longer the repeat. Say the last L
    tokens appeared earlier in the text, a token followed them there, and L is at least dry_allowed_length. Then
    dry_multiplier * dry_base ^ (L - dry_allowed_length), at most 1e30, is subtracted from that token's logit. The text
    is the prompt and the output. Range 0 .. 1e4; 0: off. Server default 0."""
    dry_base: float | SupportsFloat | None = None
    """The base of DRY's penalty; see dry_multiplier. Range 1 .. 1e4. Server default 1.75."""
    dry_allowed_length: int | SupportsIndex | None = None
    """The longest repeat that costs nothing, in tokens; DRY penalises a token that would extend it. Range 1 .. 1,024.
    Server default 2."""
    dry_penalty_last_n: int | SupportsIndex | None = None
    """DRY looks only at this many of the last tokens. Range -1 .. 32,768; -1: 32,768, which is the whole of most texts;
    0: DRY is off. Server default -1."""
    dry_sequence_breakers: Sequence[TokenSequence | pb.TokenSequence | Mapping[str, Any] | Sequence[int | SupportsIndex]] | None = None
    """No repeat reaches across one of these, and a breaker of a single token is never penalised. At most 1,024. Texts
    are given as dry_sequence_breaker_texts. Server default: none."""
    penalty_last_n: int | SupportsIndex | None = None
    """repetition_penalty, frequency_penalty and presence_penalty see only this many of the last tokens of prompt and
    output. Range 0 .. 1,048,576; 0: all. Server default 0."""
    penalty_decay_n: int | SupportsIndex | None = None
    """Over this many tokens further back, these penalties fall off. A token whose latest occurrence is d tokens back is
    penalised with the strength s = 1 - (d - penalty_last_n) / (penalty_decay_n + 1): a repetition penalty r becomes 1 +
    (r - 1) * s, and the other two are multiplied by s. 0: they end at once. Needs penalty_last_n; the two together are
    at most 65,535. Server default 0."""
    prompt_ignore_length: int | SupportsIndex | None = None
    """repetition_penalty does not see this many of the first tokens of the prompt. With penalties_count_prompt, the
    other two do not count them. 0: all are seen. Server default 0."""
    encoder_repetition_penalty: float | SupportsFloat | None = None
    """For tokens in the prompt, wherever penalties look: positive logits are multiplied by it, others divided, after
    repetition_penalty. Above 1 it favours what the prompt says. Range 1e-4 .. 1e4; 1: off. Server default 1."""
    no_repeat_ngram: NoRepeatNgramParams | pb.NoRepeatNgramParams | Mapping[str, Any] | None = None
    """No n-gram of prompt and output comes twice. Server default: off."""
    length_penalty: LengthPenaltyParams | pb.LengthPenaltyParams | Mapping[str, Any] | None = None
    """EOS becomes more likely with length. After all other penalties; off with ignore_eos. Needs eos_token_ids of the
    stream. Server default: off."""
    sequence_bias: Sequence[SequenceBias | pb.SequenceBias | Mapping[str, Any]] | None = None
    """Biases on tokens that follow certain other tokens, added together with logit_bias. At most 1,024. Server default:
    none."""
    token_ban_ranges: Sequence[TokenBanRange | pb.TokenBanRange | Mapping[str, Any]] | None = None
    """Tokens banned at some positions of the output, such as its first ones. At most 64, with at most 32,768 token ids
    together. Server default: none."""
    forced_first_token: int | SupportsIndex | None = None
    """The output begins with this token, whatever is banned or allowed; its logit must not be -infinity. Server
    default: free. Where the stream's default forces a token, a sequence can replace it but not free the position."""
    forced_last_token: int | SupportsIndex | None = None
    """The token at which max_tokens is reached is this one, in the same way. Needs max_tokens. With max_tokens 1 it is
    emitted instead of forced_first_token. Server default: free. Where the stream's default forces a token, a sequence
    can replace it but not free the position."""
    repetition_detection: RepetitionDetectionParams | pb.RepetitionDetectionParams | Mapping[str, Any] | None = None
    """End the sequence with FINISH_REASON_REPETITION when its output only repeats itself. Server default: off."""
    thinking_budget: ThinkingBudgetParams | pb.ThinkingBudgetParams | Mapping[str, Any] | None = None
    """How many tokens a stretch of thinking may have. Server default: any number."""
    return_sampler_state: bool | None = None
    """Send what samplers remember with each token, in WorkResult.sampler_state. A worker that wants to go on after a
    failure needs it where mirostat or adaptive_target is on. Server default false."""
    report: ReportParams | pb.ReportParams | Mapping[str, Any] | None = None
    """Say how each token was chosen, in Token.report. Server default: nothing."""
    skew: float | SupportsFloat | None = None
    """Skewed sampling, as in ExLlamaV2: the uniform number that picks a token along falling probabilities is raised to
    the power exp(-skew). Above 0, less likely tokens come more often; below 0, more likely ones. Range -10 .. 10; 0:
    off. Server default 0."""
    xtc_expected: bool | None = None
    """XTC as ExLlama does it: not by chance at some positions, but at every position by the average effect. The
    probability of top choices that would go is multiplied by (1 - xtc_probability) / (1 + xtc_probability * m / (1 -
    m)), where m is their total probability. Server default: by engine_order, true for EXLLAMA and EXLLAMA_V3, false for
    all others."""
    infill: bool | None = None
    """Fill in the middle, as in llama.cpp: ends a text where its continuation is not certain. Put top_k and top_p
    before it.

    It works on the n tokens that the samplers before it left. Tokens that end the text are eos_token_ids (without
    ignore_eos) and stop_token_ids. If 3 * n times their probability is above that of all other tokens, only they stay.
    Otherwise, a token whose text is the beginning of another token's counts together with it, as the more likely one of
    the two. Of the tokens other than those that end the text, those that count less than 0.2 are removed. Of the k that
    are left, those with at least 1 / (k + 1) of what is left stay, together with the tokens that end the text. If none
    counts 0.2, the only token that stays is the first one that ends the text and may be emitted. Tokens that stay keep
    their own probabilities.

    It needs a server with a vocabulary (GetServerInfoResponse.vocabulary) and a token that ends the text. Without
    either, the field is invalid wherever the temperature is above 0. Server default false."""
    penalties_count_prompt: bool | None = None
    """frequency_penalty and presence_penalty count tokens of the prompt too, as far as repetition_penalty sees them:
    within penalty_last_n and penalty_decay_n, except for the first prompt_ignore_length. llama.cpp, ExLlamaV2, text-
    generation-webui and TensorRT-LLM count this way; OpenAI and vLLM count the output alone. Server default: true with
    the engine_order LLAMA_CPP, TEXT_GENERATION_WEBUI, EXLLAMA, KOBOLD_CPP, EXLLAMA_V3, MLX or TENSORRT_LLM, else false.
    """
    min_eos_p: float | SupportsFloat | None = None
    """Ends a text that is likely to end, as Transformers' BarkEosPrioritizer: if one of the stream's eos_token_ids has
    a probability above this, only these tokens are left, each with its own logit. Several count one by one, not
    together. In the default order it comes before the temperature, so the probability is the model's, after masks, bias
    and penalties. It does nothing where fewer than min_keep tokens would be left. It needs eos_token_ids and no
    ignore_eos; otherwise the field is invalid wherever the temperature is above 0. Range 0 .. 1; 0: off. Server default
    0."""
    dry_max_ngram: int | SupportsIndex | None = None
    """Bounds DRY's search, as Aphrodite does: this many tokens before the last one are compared, so a repeat counts as
    at most one token more. Range 0, or dry_allowed_length + 1 .. 32,768; 0: no bound. Server default 0."""
    dry_max_occurrences: int | SupportsIndex | None = None
    """Bounds DRY's search: of the places where the last token appeared before, it looks at this many, the latest ones,
    whatever comes before them. Range 0 .. 1,024; 0: no bound. Server default 0."""
    dry_early_exit_match_len: int | SupportsIndex | None = None
    """Bounds DRY's search: it looks at places from the latest one back, and stops at the first that repeats this many
    tokens, and at least 2. Range 0 .. 512; 0: no bound. Server default 0."""
    min_k: bool | None = None
    """Min-k (Ding et al. 2026): of the V tokens that are left, with logits l_1 >= l_2 >= ... >= l_V taken without
    temperature, keep the first

    max(c, floor(min_k_tau / (l_1 - l_V + 1e-8)))

    and at most all. c, the cliff, is the place i from 1 to V - 1 with the largest (l_i - l_(i+1)) / i, the first of
    several, or 1 where V is 1. Of equal logits the lower token ids come first. No other engine's order has a place for
    it. Server default false."""
    min_k_tau: float | SupportsFloat | None = None
    """How many tokens min_k keeps at least, times the distance between the largest and the least logit, so that narrow
    rows keep many. Range 0 .. 3.4028235e38; 0: the cliff alone decides. Server default 3."""
    p_less_norm: bool | None = None
    """p_less as its normalized form (p-less-norm), which keeps more: with s the sum of the squares of all probabilities
    and V the number of tokens that are left, p_less keeps probabilities of at least (V * s - 1) / (V - 1) in place of
    s, and all where they are equal. Without p_less it has no effect. Server default false."""
    grammar: GrammarParams | pb.GrammarParams | Mapping[str, Any] | None = None
    """Structured output: the text has to match this grammar. At each position only tokens with which the text can still
    match may be emitted, as if a mask (Work.token_masks) left only these. After a whole match, the tokens that end the
    text (eos_token_ids and stop_token_ids) may be emitted too; where nothing can follow, only they may. Draft tokens
    are masked and verified position by position. A text that is opened again with its tokens goes on where it was;
    tokens that the grammar does not allow there make output_token_ids invalid.

    It needs a server that compiles grammars (settings grammars and vocabulary) and a token that ends the text;
    otherwise the field is invalid, as is a grammar that does not compile. A message without a kind: none, whatever the
    stream's default. Server default: none."""
    stop_token_sequences: Sequence[TokenSequence | pb.TokenSequence | Mapping[str, Any] | Sequence[int | SupportsIndex]] | None = None
    """The sequence ends with FINISH_REASON_STOP_SEQUENCE when its output ends with one of these, which stays part of
    the output. One that begins in the prompt does not count, and one that is complete before min_tokens ends nothing.
    At most 64. Server default: none."""
    subtract_penalties_first: bool | None = None
    """frequency_penalty and presence_penalty are subtracted before repetition_penalty and encoder_repetition_penalty
    multiply and divide, instead of after them: of a logit of 4, a presence penalty of 1 and a repetition penalty of 2
    make (4 - 1) / 2 instead of 4 / 2 - 1. SGLang, mistral.rs and MLC-LLM do so. Server default: true with the
    engine_order SGLANG or MISTRAL_RS, else false."""
    bias_after_penalties: bool | None = None
    """logit_bias and sequence_bias are added after all penalties, instead of before them. SGLang, mistral.rs and
    ExLlamaV2 do so. Server default: true with the engine_order EXLLAMA, SGLANG or MISTRAL_RS, else false."""
    dry_sequence_breaker_texts: Sequence[str] | None = None
    """More sequence breakers of DRY, given as texts: no repeat reaches across a token with which one of them is
    complete, whichever tokens spell it, and a token whose own text has one is never penalised. What counts are the
    bytes of the tokens' texts, one after the other; a control token has its name, and a token with neither ends what
    has begun. llama.cpp breaks at line ends, colons, quotation marks and asterisks unless told otherwise. It needs a
    vocabulary (GetServerInfoResponse.vocabulary); without one, the field is invalid wherever DRY is on. At most 64,
    each of 1 .. 64 bytes of UTF-8. Server default: none."""
    preset: str = ""
    """A named set of parameters of the server, such as "chat", for fields that are absent here. GetServerInfo lists the
    names; another name is invalid. A sequence's fields come first, then its preset, then the stream's fields and its
    preset, then the server's defaults. Default: none."""
    watermark: WatermarkParams | pb.WatermarkParams | Mapping[str, Any] | None = None
    """Mark the text, so that whoever has the key can later tell it from text that was not made here
    (docs/watermarks.md, `croupier detect`). A message without a scheme: no mark, whatever the stream's default. Server
    default: no mark."""


class SamplingFields(TypedDict, total=False):
    """Fields of `SamplingParams` by name, as `Stream.open` takes them."""

    temperature: float | SupportsFloat | None
    top_k: int | SupportsIndex | None
    top_p: float | SupportsFloat | None
    min_p: float | SupportsFloat | None
    repetition_penalty: float | SupportsFloat | None
    frequency_penalty: float | SupportsFloat | None
    presence_penalty: float | SupportsFloat | None
    logit_bias: Sequence[LogitBias | pb.LogitBias | Mapping[str, Any]] | Mapping[int, float | SupportsFloat] | None
    allowed_token_ids: Sequence[int | SupportsIndex] | None
    banned_token_ids: Sequence[int | SupportsIndex] | None
    bad_words: Sequence[TokenSequence | pb.TokenSequence | Mapping[str, Any] | Sequence[int | SupportsIndex]] | None
    min_tokens: int | SupportsIndex | None
    max_tokens: int | SupportsIndex | None
    stop_token_ids: Sequence[int | SupportsIndex] | None
    ignore_eos: bool | None
    seed: int | SupportsIndex | None
    logprobs: LogprobsParams | pb.LogprobsParams | Mapping[str, Any] | None
    acceptance: AcceptanceParams | pb.AcceptanceParams | Mapping[str, Any] | None
    proposer: ProposerParams | pb.ProposerParams | Mapping[str, Any] | None
    draft_length: DraftLengthParams | pb.DraftLengthParams | Mapping[str, Any] | None
    dynatemp_low: float | SupportsFloat | None
    dynatemp_high: float | SupportsFloat | None
    dynatemp_exponent: float | SupportsFloat | None
    temperature_end: float | SupportsFloat | None
    temperature_tokens: int | SupportsIndex | None
    smoothing_factor: float | SupportsFloat | None
    smoothing_curve: float | SupportsFloat | None
    typical_p: float | SupportsFloat | None
    tfs: float | SupportsFloat | None
    top_a: float | SupportsFloat | None
    top_n_sigma: float | SupportsFloat | None
    epsilon_cutoff: float | SupportsFloat | None
    eta_cutoff: float | SupportsFloat | None
    top_h: float | SupportsFloat | None
    xtc_probability: float | SupportsFloat | None
    xtc_threshold: float | SupportsFloat | None
    xtc_ignore_token_ids: Sequence[int | SupportsIndex] | None
    min_keep: int | SupportsIndex | None
    sampler_order: Sequence[SamplerKind | int | str] | None
    engine_order: EngineOrder | int | str | None
    mirostat: int | SupportsIndex | None
    mirostat_tau: float | SupportsFloat | None
    mirostat_eta: float | SupportsFloat | None
    adaptive_target: float | SupportsFloat | None
    adaptive_decay: float | SupportsFloat | None
    top_p_decay: float | SupportsFloat | None
    top_p_min: float | SupportsFloat | None
    top_p_reset_token_ids: Sequence[int | SupportsIndex] | None
    p_less: bool | None
    dry_multiplier: float | SupportsFloat | None
    dry_base: float | SupportsFloat | None
    dry_allowed_length: int | SupportsIndex | None
    dry_penalty_last_n: int | SupportsIndex | None
    dry_sequence_breakers: Sequence[TokenSequence | pb.TokenSequence | Mapping[str, Any] | Sequence[int | SupportsIndex]] | None
    penalty_last_n: int | SupportsIndex | None
    penalty_decay_n: int | SupportsIndex | None
    prompt_ignore_length: int | SupportsIndex | None
    encoder_repetition_penalty: float | SupportsFloat | None
    no_repeat_ngram: NoRepeatNgramParams | pb.NoRepeatNgramParams | Mapping[str, Any] | None
    length_penalty: LengthPenaltyParams | pb.LengthPenaltyParams | Mapping[str, Any] | None
    sequence_bias: Sequence[SequenceBias | pb.SequenceBias | Mapping[str, Any]] | None
    token_ban_ranges: Sequence[TokenBanRange | pb.TokenBanRange | Mapping[str, Any]] | None
    forced_first_token: int | SupportsIndex | None
    forced_last_token: int | SupportsIndex | None
    repetition_detection: RepetitionDetectionParams | pb.RepetitionDetectionParams | Mapping[str, Any] | None
    thinking_budget: ThinkingBudgetParams | pb.ThinkingBudgetParams | Mapping[str, Any] | None
    return_sampler_state: bool | None
    report: ReportParams | pb.ReportParams | Mapping[str, Any] | None
    skew: float | SupportsFloat | None
    xtc_expected: bool | None
    infill: bool | None
    penalties_count_prompt: bool | None
    min_eos_p: float | SupportsFloat | None
    dry_max_ngram: int | SupportsIndex | None
    dry_max_occurrences: int | SupportsIndex | None
    dry_early_exit_match_len: int | SupportsIndex | None
    min_k: bool | None
    min_k_tau: float | SupportsFloat | None
    p_less_norm: bool | None
    grammar: GrammarParams | pb.GrammarParams | Mapping[str, Any] | None
    stop_token_sequences: Sequence[TokenSequence | pb.TokenSequence | Mapping[str, Any] | Sequence[int | SupportsIndex]] | None
    subtract_penalties_first: bool | None
    bias_after_penalties: bool | None
    dry_sequence_breaker_texts: Sequence[str] | None
    preset: str
    watermark: WatermarkParams | pb.WatermarkParams | Mapping[str, Any] | None
