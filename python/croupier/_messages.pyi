# What type checkers see of the messages. Made by python/generate.py; do not change it here.

from abc import ABCMeta as _ABCMeta
from collections.abc import Iterable as _Iterable, Mapping as _Mapping, MutableSequence as _MutableSequence
from typing import Any as _Any, TypeVar as _TypeVar

from google.protobuf.message import Message as _Protobuf
from typing_extensions import Self as _Self

_T = _TypeVar("_T")
_Fields = _Mapping[str, _Any]
# A message has a field `bytes`.
_Bytes = bytes

class _Message(_Protobuf):  # type: ignore[misc, unused-ignore]  # Without protobuf's own stubs it is Any.
    DESCRIPTOR: _Any
    @classmethod
    def FromString(cls, data: bytes) -> _Self: ...
    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...
    def ByteSize(self) -> int: ...
    def CopyFrom(self, other: _Self) -> None: ...
    def MergeFrom(self, other: _Self) -> None: ...
    def ClearField(self, field_name: str) -> None: ...
    def HasField(self, field_name: str) -> bool: ...
    def ListFields(self) -> list[tuple[_Any, _Any]]: ...
    def SetInParent(self) -> None: ...
    def WhichOneof(self, oneof_group: str) -> str | None: ...

class _Enum:
    """An enum's names and numbers."""
    DESCRIPTOR: _Any
    def Name(self, number: int) -> str: ...
    def Value(self, name: str) -> int: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...
    def items(self) -> list[tuple[str, int]]: ...

class _Scalars(_MutableSequence[_T], metaclass=_ABCMeta):
    def MergeFrom(self, other: _Self) -> None: ...

class _Messages(_MutableSequence[_T], metaclass=_ABCMeta):
    def add(self, **fields: _Any) -> _T: ...
    def MergeFrom(self, other: _Self) -> None: ...

class DecodeRequest(_Message):
    @property
    def config(self) -> StreamConfig: ...
    @property
    def step(self) -> Step: ...
    def __init__(self, *, config: StreamConfig | _Fields | None = ..., step: Step | _Fields | None = ...) -> None: ...

class DecodeResponse(_Message):
    @property
    def ready(self) -> StreamReady: ...
    @property
    def step(self) -> StepResult: ...
    def __init__(self, *, ready: StreamReady | _Fields | None = ...,
                 step: StepResult | _Fields | None = ...) -> None: ...

class StreamConfig(_Message):
    vocab_size: int
    logits_dtype: int
    model: str
    @property
    def eos_token_ids(self) -> _Scalars[int]: ...
    @property
    def default_params(self) -> SamplingParams: ...
    wants_regions: bool
    @property
    def draft_vocabulary(self) -> _Scalars[int]: ...
    @property
    def vocab_shards(self) -> VocabShards: ...
    def __init__(self, *, vocab_size: int | None = ..., logits_dtype: int | str | None = ..., model: str | None = ...,
                 eos_token_ids: _Iterable[int] | None = ..., default_params: SamplingParams | _Fields | None = ...,
                 wants_regions: bool | None = ..., draft_vocabulary: _Iterable[int] | None = ...,
                 vocab_shards: VocabShards | _Fields | None = ...) -> None: ...

class StreamReady(_Message):
    server_version: str
    backend: str
    @property
    def limits(self) -> Limits: ...
    @property
    def region_offer(self) -> RegionOffer: ...
    @property
    def shard_offer(self) -> ShardOffer: ...
    def __init__(self, *, server_version: str | None = ..., backend: str | None = ...,
                 limits: Limits | _Fields | None = ..., region_offer: RegionOffer | _Fields | None = ...,
                 shard_offer: ShardOffer | _Fields | None = ...) -> None: ...

class RegionOffer(_Message):
    socket_path: str
    token: _Bytes
    expires_in_ms: int
    def __init__(self, *, socket_path: str | None = ..., token: _Bytes | None = ...,
                 expires_in_ms: int | None = ...) -> None: ...

class Step(_Message):
    step_id: int
    @property
    def close_sequence_ids(self) -> _Scalars[int]: ...
    @property
    def open(self) -> _Messages[OpenSequence]: ...
    @property
    def work(self) -> _Messages[Work]: ...
    @property
    def inline(self) -> InlineLogits: ...
    @property
    def region(self) -> RegionLogits: ...
    @property
    def sharded(self) -> ShardedLogits: ...
    deadline_ms: int
    traceparent: str
    @property
    def token_slots(self) -> TokenSlots: ...
    @property
    def top_n(self) -> TopNRows: ...
    def __init__(self, *, step_id: int | None = ..., close_sequence_ids: _Iterable[int] | None = ...,
                 open: _Iterable[OpenSequence | _Fields] | None = ..., work: _Iterable[Work | _Fields] | None = ...,
                 inline: InlineLogits | _Fields | None = ..., region: RegionLogits | _Fields | None = ...,
                 sharded: ShardedLogits | _Fields | None = ..., deadline_ms: int | None = ...,
                 traceparent: str | None = ..., token_slots: TokenSlots | _Fields | None = ...,
                 top_n: TopNRows | _Fields | None = ...) -> None: ...

class TopNRows(_Message):
    @property
    def counts(self) -> _Scalars[int]: ...
    @property
    def token_ids(self) -> _Scalars[int]: ...
    logits: _Bytes
    @property
    def rest_logsumexp(self) -> _Scalars[float]: ...
    @property
    def beyond(self) -> _Scalars[int]: ...
    ties_in_order: bool
    def __init__(self, *, counts: _Iterable[int] | None = ..., token_ids: _Iterable[int] | None = ...,
                 logits: _Bytes | None = ..., rest_logsumexp: _Iterable[float] | None = ...,
                 beyond: _Iterable[int | str] | None = ..., ties_in_order: bool | None = ...) -> None: ...

class InlineLogits(_Message):
    data: _Bytes
    row_stride: int
    def __init__(self, *, data: _Bytes | None = ..., row_stride: int | None = ...) -> None: ...

class RegionLogits(_Message):
    region_id: int
    generation: int
    offset: int
    rows: int
    row_stride: int
    def __init__(self, *, region_id: int | None = ..., generation: int | None = ..., offset: int | None = ...,
                 rows: int | None = ..., row_stride: int | None = ...) -> None: ...

class TokenSlots(_Message):
    region_id: int
    generation: int
    offset: int
    instead_of_result: bool
    def __init__(self, *, region_id: int | None = ..., generation: int | None = ..., offset: int | None = ...,
                 instead_of_result: bool | None = ...) -> None: ...

class ShardedLogits(_Message):
    @property
    def inline(self) -> InlineLogits: ...
    @property
    def region(self) -> RegionLogits: ...
    def __init__(self, *, inline: InlineLogits | _Fields | None = ...,
                 region: RegionLogits | _Fields | None = ...) -> None: ...

class VocabShards(_Message):
    @property
    def columns(self) -> _Scalars[int]: ...
    def __init__(self, *, columns: _Iterable[int] | None = ...) -> None: ...

class ShardOffer(_Message):
    token: _Bytes
    def __init__(self, *, token: _Bytes | None = ...) -> None: ...

class AttachRequest(_Message):
    @property
    def rank(self) -> AttachRank: ...
    @property
    def shard(self) -> VocabShard: ...
    def __init__(self, *, rank: AttachRank | _Fields | None = ...,
                 shard: VocabShard | _Fields | None = ...) -> None: ...

class AttachResponse(_Message):
    @property
    def ready(self) -> RankReady: ...
    @property
    def shard(self) -> ShardResult: ...
    def __init__(self, *, ready: RankReady | _Fields | None = ...,
                 shard: ShardResult | _Fields | None = ...) -> None: ...

class AttachRank(_Message):
    token: _Bytes
    rank: int
    vocab_start_index: int
    vocab_end_index: int
    logits_dtype: int
    def __init__(self, *, token: _Bytes | None = ..., rank: int | None = ..., vocab_start_index: int | None = ...,
                 vocab_end_index: int | None = ..., logits_dtype: int | str | None = ...) -> None: ...

class RankReady(_Message):
    @property
    def region_offer(self) -> RegionOffer: ...
    last_step_id: int
    max_shards_ahead: int
    def __init__(self, *, region_offer: RegionOffer | _Fields | None = ..., last_step_id: int | None = ...,
                 max_shards_ahead: int | None = ...) -> None: ...

class VocabShard(_Message):
    step_id: int
    @property
    def inline(self) -> InlineLogits: ...
    @property
    def region(self) -> RegionLogits: ...
    def __init__(self, *, step_id: int | None = ..., inline: InlineLogits | _Fields | None = ...,
                 region: RegionLogits | _Fields | None = ...) -> None: ...

class ShardResult(_Message):
    step_id: int
    joined: bool
    @property
    def refusal(self) -> Refusal: ...
    def __init__(self, *, step_id: int | None = ..., joined: bool | None = ...,
                 refusal: Refusal | _Fields | None = ...) -> None: ...

class OpenSequence(_Message):
    sequence_id: int
    @property
    def params(self) -> SamplingParams: ...
    @property
    def prompt_token_ids(self) -> _Scalars[int]: ...
    @property
    def output_token_ids(self) -> _Scalars[int]: ...
    @property
    def sampler_state(self) -> SamplerState: ...
    @property
    def predicted_output_token_ids(self) -> _Scalars[int]: ...
    def __init__(self, *, sequence_id: int | None = ..., params: SamplingParams | _Fields | None = ...,
                 prompt_token_ids: _Iterable[int] | None = ..., output_token_ids: _Iterable[int] | None = ...,
                 sampler_state: SamplerState | _Fields | None = ...,
                 predicted_output_token_ids: _Iterable[int] | None = ...) -> None: ...

class SamplerState(_Message):
    mirostat_mu: float
    adaptive_sum: float
    adaptive_weight: float
    def __init__(self, *, mirostat_mu: float | None = ..., adaptive_sum: float | None = ...,
                 adaptive_weight: float | None = ...) -> None: ...

class Work(_Message):
    sequence_id: int
    first_row: int
    @property
    def sample(self) -> SampleWork: ...
    @property
    def draft(self) -> DraftWork: ...
    @property
    def score(self) -> ScoreWork: ...
    @property
    def verify(self) -> VerifyWork: ...
    token_masks: _Bytes
    def __init__(self, *, sequence_id: int | None = ..., first_row: int | None = ...,
                 sample: SampleWork | _Fields | None = ..., draft: DraftWork | _Fields | None = ...,
                 score: ScoreWork | _Fields | None = ..., verify: VerifyWork | _Fields | None = ...,
                 token_masks: _Bytes | None = ...) -> None: ...

class SampleWork(_Message):
    def __init__(self) -> None: ...

class DraftWork(_Message):
    restart: bool
    parent: int
    def __init__(self, *, restart: bool | None = ..., parent: int | None = ...) -> None: ...

class ScoreWork(_Message):
    @property
    def token_ids(self) -> _Scalars[int]: ...
    @property
    def logprobs(self) -> LogprobsParams: ...
    def __init__(self, *, token_ids: _Iterable[int] | None = ...,
                 logprobs: LogprobsParams | _Fields | None = ...) -> None: ...

class VerifyWork(_Message):
    @property
    def draft_token_ids(self) -> _Scalars[int]: ...
    @property
    def parents(self) -> _Scalars[int]: ...
    @property
    def kept(self) -> KeptDraft: ...
    @property
    def dense(self) -> DenseDraft: ...
    @property
    def sparse(self) -> SparseDraft: ...
    @property
    def deterministic(self) -> DeterministicDraft: ...
    measure: bool
    def __init__(self, *, draft_token_ids: _Iterable[int] | None = ..., parents: _Iterable[int] | None = ...,
                 kept: KeptDraft | _Fields | None = ..., dense: DenseDraft | _Fields | None = ...,
                 sparse: SparseDraft | _Fields | None = ..., deterministic: DeterministicDraft | _Fields | None = ...,
                 measure: bool | None = ...) -> None: ...

class KeptDraft(_Message):
    def __init__(self) -> None: ...

class DenseDraft(_Message):
    probs: _Bytes
    dtype: int
    def __init__(self, *, probs: _Bytes | None = ..., dtype: int | str | None = ...) -> None: ...

class SparseDraft(_Message):
    @property
    def counts(self) -> _Scalars[int]: ...
    @property
    def token_ids(self) -> _Scalars[int]: ...
    @property
    def probs(self) -> _Scalars[float]: ...
    def __init__(self, *, counts: _Iterable[int] | None = ..., token_ids: _Iterable[int] | None = ...,
                 probs: _Iterable[float] | None = ...) -> None: ...

class DeterministicDraft(_Message):
    def __init__(self) -> None: ...

class StepResult(_Message):
    step_id: int
    @property
    def open(self) -> _Messages[OpenResult]: ...
    @property
    def work(self) -> _Messages[WorkResult]: ...
    @property
    def refusal(self) -> Refusal: ...
    in_slots: bool
    go_away: bool
    def __init__(self, *, step_id: int | None = ..., open: _Iterable[OpenResult | _Fields] | None = ...,
                 work: _Iterable[WorkResult | _Fields] | None = ..., refusal: Refusal | _Fields | None = ...,
                 in_slots: bool | None = ..., go_away: bool | None = ...) -> None: ...

class Refusal(_Message):
    reason: str
    message: str
    retry_after_ms: int
    def __init__(self, *, reason: str | None = ..., message: str | None = ...,
                 retry_after_ms: int | None = ...) -> None: ...

class OpenResult(_Message):
    sequence_id: int
    status: int
    seed: int
    position: int
    @property
    def error(self) -> FieldError: ...
    def __init__(self, *, sequence_id: int | None = ..., status: int | str | None = ..., seed: int | None = ...,
                 position: int | None = ..., error: FieldError | _Fields | None = ...) -> None: ...

class FieldError(_Message):
    field: str
    message: str
    def __init__(self, *, field: str | None = ..., message: str | None = ...) -> None: ...

class WorkResult(_Message):
    status: int
    message: str
    @property
    def tokens(self) -> _Messages[Token]: ...
    finish_reason: int
    @property
    def verify(self) -> VerifyResult: ...
    @property
    def proposed_token_ids(self) -> _Scalars[int]: ...
    advised_draft_length: int
    @property
    def sampler_state(self) -> SamplerState: ...
    truncated: bool
    def __init__(self, *, status: int | str | None = ..., message: str | None = ...,
                 tokens: _Iterable[Token | _Fields] | None = ..., finish_reason: int | str | None = ...,
                 verify: VerifyResult | _Fields | None = ..., proposed_token_ids: _Iterable[int] | None = ...,
                 advised_draft_length: int | None = ..., sampler_state: SamplerState | _Fields | None = ...,
                 truncated: bool | None = ...) -> None: ...

class VerifyResult(_Message):
    accepted_count: int
    @property
    def accepted_path(self) -> _Scalars[int]: ...
    lossless: bool
    last_token: int
    @property
    def tests(self) -> _Messages[DraftTest]: ...
    def __init__(self, *, accepted_count: int | None = ..., accepted_path: _Iterable[int] | None = ...,
                 lossless: bool | None = ..., last_token: int | str | None = ...,
                 tests: _Iterable[DraftTest | _Fields] | None = ...) -> None: ...

class DraftTest(_Message):
    index: int
    accepted: bool
    expected_acceptance: float
    total_variation: float
    rejected_rank: int
    target_probability: float
    draft_probability: float
    expected_draft_probability: float
    draft_probability_variance: float
    late_overlap: float
    early_overlap: float
    next_overlap: float
    def __init__(self, *, index: int | None = ..., accepted: bool | None = ..., expected_acceptance: float | None = ...,
                 total_variation: float | None = ..., rejected_rank: int | None = ...,
                 target_probability: float | None = ..., draft_probability: float | None = ...,
                 expected_draft_probability: float | None = ..., draft_probability_variance: float | None = ...,
                 late_overlap: float | None = ..., early_overlap: float | None = ...,
                 next_overlap: float | None = ...) -> None: ...

class Token(_Message):
    token_id: int
    logprob: float
    rank: int
    @property
    def top_token_ids(self) -> _Scalars[int]: ...
    @property
    def top_logprobs(self) -> _Scalars[float]: ...
    @property
    def requested_logprobs(self) -> _Scalars[float]: ...
    @property
    def report(self) -> Report: ...
    rounded_logprobs: bool
    def __init__(self, *, token_id: int | None = ..., logprob: float | None = ..., rank: int | None = ...,
                 top_token_ids: _Iterable[int] | None = ..., top_logprobs: _Iterable[float] | None = ...,
                 requested_logprobs: _Iterable[float] | None = ..., report: Report | _Fields | None = ...,
                 rounded_logprobs: bool | None = ...) -> None: ...

class Report(_Message):
    support_size: int
    @property
    def surviving_token_ids(self) -> _Scalars[int]: ...
    entropy: float
    raw_entropy: float
    @property
    def why_not(self) -> _Messages[WhyNot]: ...
    def __init__(self, *, support_size: int | None = ..., surviving_token_ids: _Iterable[int] | None = ...,
                 entropy: float | None = ..., raw_entropy: float | None = ...,
                 why_not: _Iterable[WhyNot | _Fields] | None = ...) -> None: ...

class WhyNot(_Message):
    token_id: int
    removed_by: int
    sampler: int
    raw_logit: float
    adjusted_logit: float
    probability: float
    rank: int
    def __init__(self, *, token_id: int | None = ..., removed_by: int | str | None = ...,
                 sampler: int | str | None = ..., raw_logit: float | None = ..., adjusted_logit: float | None = ...,
                 probability: float | None = ..., rank: int | None = ...) -> None: ...

class SampleRequest(_Message):
    vocab_size: int
    logits_dtype: int
    model: str
    @property
    def eos_token_ids(self) -> _Scalars[int]: ...
    @property
    def default_params(self) -> SamplingParams: ...
    @property
    def rows(self) -> _Messages[SampleRow]: ...
    @property
    def logits(self) -> InlineLogits: ...
    @property
    def top_n(self) -> TopNRows: ...
    def __init__(self, *, vocab_size: int | None = ..., logits_dtype: int | str | None = ..., model: str | None = ...,
                 eos_token_ids: _Iterable[int] | None = ..., default_params: SamplingParams | _Fields | None = ...,
                 rows: _Iterable[SampleRow | _Fields] | None = ..., logits: InlineLogits | _Fields | None = ...,
                 top_n: TopNRows | _Fields | None = ...) -> None: ...

class SampleRow(_Message):
    @property
    def params(self) -> SamplingParams: ...
    @property
    def prompt_token_ids(self) -> _Scalars[int]: ...
    @property
    def output_token_ids(self) -> _Scalars[int]: ...
    row: int
    @property
    def sampler_state(self) -> SamplerState: ...
    token_mask: _Bytes
    def __init__(self, *, params: SamplingParams | _Fields | None = ..., prompt_token_ids: _Iterable[int] | None = ...,
                 output_token_ids: _Iterable[int] | None = ..., row: int | None = ...,
                 sampler_state: SamplerState | _Fields | None = ..., token_mask: _Bytes | None = ...) -> None: ...

class SampleResponse(_Message):
    @property
    def rows(self) -> _Messages[SampleRowResult]: ...
    def __init__(self, *, rows: _Iterable[SampleRowResult | _Fields] | None = ...) -> None: ...

class SampleRowResult(_Message):
    status: int
    message: str
    @property
    def token(self) -> Token: ...
    finish_reason: int
    seed: int
    @property
    def sampler_state(self) -> SamplerState: ...
    truncated: bool
    def __init__(self, *, status: int | str | None = ..., message: str | None = ...,
                 token: Token | _Fields | None = ..., finish_reason: int | str | None = ..., seed: int | None = ...,
                 sampler_state: SamplerState | _Fields | None = ..., truncated: bool | None = ...) -> None: ...

class SamplingParams(_Message):
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    @property
    def logit_bias(self) -> _Messages[LogitBias]: ...
    @property
    def allowed_token_ids(self) -> _Scalars[int]: ...
    @property
    def banned_token_ids(self) -> _Scalars[int]: ...
    @property
    def bad_words(self) -> _Messages[TokenSequence]: ...
    min_tokens: int
    max_tokens: int
    @property
    def stop_token_ids(self) -> _Scalars[int]: ...
    ignore_eos: bool
    seed: int
    @property
    def logprobs(self) -> LogprobsParams: ...
    @property
    def acceptance(self) -> AcceptanceParams: ...
    @property
    def proposer(self) -> ProposerParams: ...
    @property
    def draft_length(self) -> DraftLengthParams: ...
    dynatemp_low: float
    dynatemp_high: float
    dynatemp_exponent: float
    temperature_end: float
    temperature_tokens: int
    smoothing_factor: float
    smoothing_curve: float
    typical_p: float
    tfs: float
    top_a: float
    top_n_sigma: float
    epsilon_cutoff: float
    eta_cutoff: float
    top_h: float
    xtc_probability: float
    xtc_threshold: float
    @property
    def xtc_ignore_token_ids(self) -> _Scalars[int]: ...
    min_keep: int
    @property
    def sampler_order(self) -> _Scalars[int]: ...
    engine_order: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    top_p_decay: float
    top_p_min: float
    @property
    def top_p_reset_token_ids(self) -> _Scalars[int]: ...
    p_less: bool
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    @property
    def dry_sequence_breakers(self) -> _Messages[TokenSequence]: ...
    penalty_last_n: int
    penalty_decay_n: int
    prompt_ignore_length: int
    encoder_repetition_penalty: float
    @property
    def no_repeat_ngram(self) -> NoRepeatNgramParams: ...
    @property
    def length_penalty(self) -> LengthPenaltyParams: ...
    @property
    def sequence_bias(self) -> _Messages[SequenceBias]: ...
    @property
    def token_ban_ranges(self) -> _Messages[TokenBanRange]: ...
    forced_first_token: int
    forced_last_token: int
    @property
    def repetition_detection(self) -> RepetitionDetectionParams: ...
    @property
    def thinking_budget(self) -> ThinkingBudgetParams: ...
    return_sampler_state: bool
    @property
    def report(self) -> ReportParams: ...
    skew: float
    xtc_expected: bool
    infill: bool
    penalties_count_prompt: bool
    min_eos_p: float
    dry_max_ngram: int
    dry_max_occurrences: int
    dry_early_exit_match_len: int
    min_k: bool
    min_k_tau: float
    p_less_norm: bool
    @property
    def grammar(self) -> GrammarParams: ...
    @property
    def stop_token_sequences(self) -> _Messages[TokenSequence]: ...
    subtract_penalties_first: bool
    bias_after_penalties: bool
    @property
    def dry_sequence_breaker_texts(self) -> _Scalars[str]: ...
    preset: str
    @property
    def watermark(self) -> WatermarkParams: ...
    def __init__(self, *, temperature: float | None = ..., top_k: int | None = ..., top_p: float | None = ...,
                 min_p: float | None = ..., repetition_penalty: float | None = ...,
                 frequency_penalty: float | None = ..., presence_penalty: float | None = ...,
                 logit_bias: _Iterable[LogitBias | _Fields] | None = ...,
                 allowed_token_ids: _Iterable[int] | None = ..., banned_token_ids: _Iterable[int] | None = ...,
                 bad_words: _Iterable[TokenSequence | _Fields] | None = ..., min_tokens: int | None = ...,
                 max_tokens: int | None = ..., stop_token_ids: _Iterable[int] | None = ...,
                 ignore_eos: bool | None = ..., seed: int | None = ..., logprobs: LogprobsParams | _Fields | None = ...,
                 acceptance: AcceptanceParams | _Fields | None = ..., proposer: ProposerParams | _Fields | None = ...,
                 draft_length: DraftLengthParams | _Fields | None = ..., dynatemp_low: float | None = ...,
                 dynatemp_high: float | None = ..., dynatemp_exponent: float | None = ...,
                 temperature_end: float | None = ..., temperature_tokens: int | None = ...,
                 smoothing_factor: float | None = ..., smoothing_curve: float | None = ...,
                 typical_p: float | None = ..., tfs: float | None = ..., top_a: float | None = ...,
                 top_n_sigma: float | None = ..., epsilon_cutoff: float | None = ..., eta_cutoff: float | None = ...,
                 top_h: float | None = ..., xtc_probability: float | None = ..., xtc_threshold: float | None = ...,
                 xtc_ignore_token_ids: _Iterable[int] | None = ..., min_keep: int | None = ...,
                 sampler_order: _Iterable[int | str] | None = ..., engine_order: int | str | None = ...,
                 mirostat: int | None = ..., mirostat_tau: float | None = ..., mirostat_eta: float | None = ...,
                 adaptive_target: float | None = ..., adaptive_decay: float | None = ...,
                 top_p_decay: float | None = ..., top_p_min: float | None = ...,
                 top_p_reset_token_ids: _Iterable[int] | None = ..., p_less: bool | None = ...,
                 dry_multiplier: float | None = ..., dry_base: float | None = ..., dry_allowed_length: int | None = ...,
                 dry_penalty_last_n: int | None = ...,
                 dry_sequence_breakers: _Iterable[TokenSequence | _Fields] | None = ...,
                 penalty_last_n: int | None = ..., penalty_decay_n: int | None = ...,
                 prompt_ignore_length: int | None = ..., encoder_repetition_penalty: float | None = ...,
                 no_repeat_ngram: NoRepeatNgramParams | _Fields | None = ...,
                 length_penalty: LengthPenaltyParams | _Fields | None = ...,
                 sequence_bias: _Iterable[SequenceBias | _Fields] | None = ...,
                 token_ban_ranges: _Iterable[TokenBanRange | _Fields] | None = ...,
                 forced_first_token: int | None = ..., forced_last_token: int | None = ...,
                 repetition_detection: RepetitionDetectionParams | _Fields | None = ...,
                 thinking_budget: ThinkingBudgetParams | _Fields | None = ..., return_sampler_state: bool | None = ...,
                 report: ReportParams | _Fields | None = ..., skew: float | None = ..., xtc_expected: bool | None = ...,
                 infill: bool | None = ..., penalties_count_prompt: bool | None = ..., min_eos_p: float | None = ...,
                 dry_max_ngram: int | None = ..., dry_max_occurrences: int | None = ...,
                 dry_early_exit_match_len: int | None = ..., min_k: bool | None = ..., min_k_tau: float | None = ...,
                 p_less_norm: bool | None = ..., grammar: GrammarParams | _Fields | None = ...,
                 stop_token_sequences: _Iterable[TokenSequence | _Fields] | None = ...,
                 subtract_penalties_first: bool | None = ..., bias_after_penalties: bool | None = ...,
                 dry_sequence_breaker_texts: _Iterable[str] | None = ..., preset: str | None = ...,
                 watermark: WatermarkParams | _Fields | None = ...) -> None: ...

class WatermarkParams(_Message):
    @property
    def kgw(self) -> KgwParams: ...
    @property
    def synthid(self) -> SynthidParams: ...
    @property
    def gumbel(self) -> GumbelParams: ...
    def __init__(self, *, kgw: KgwParams | _Fields | None = ..., synthid: SynthidParams | _Fields | None = ...,
                 gumbel: GumbelParams | _Fields | None = ...) -> None: ...

class KgwParams(_Message):
    hashing_key: int
    greenlist_ratio: float
    bias: float
    seeding_scheme: int
    context_width: int
    def __init__(self, *, hashing_key: int | None = ..., greenlist_ratio: float | None = ..., bias: float | None = ...,
                 seeding_scheme: int | str | None = ..., context_width: int | None = ...) -> None: ...

class SynthidParams(_Message):
    @property
    def keys(self) -> _Scalars[int]: ...
    ngram_len: int
    context_history_size: int
    sampling_table_size: int
    sampling_table_seed: int
    skip_first_ngram_calls: bool
    def __init__(self, *, keys: _Iterable[int] | None = ..., ngram_len: int | None = ...,
                 context_history_size: int | None = ..., sampling_table_size: int | None = ...,
                 sampling_table_seed: int | None = ..., skip_first_ngram_calls: bool | None = ...) -> None: ...

class GumbelParams(_Message):
    key: int
    context_width: int
    context_history_size: int
    def __init__(self, *, key: int | None = ..., context_width: int | None = ...,
                 context_history_size: int | None = ...) -> None: ...

class LogitBias(_Message):
    token_id: int
    bias: float
    def __init__(self, *, token_id: int | None = ..., bias: float | None = ...) -> None: ...

class NoRepeatNgramParams(_Message):
    size: int
    window: int
    @property
    def whitelist_token_ids(self) -> _Scalars[int]: ...
    prompt_size: int
    def __init__(self, *, size: int | None = ..., window: int | None = ...,
                 whitelist_token_ids: _Iterable[int] | None = ..., prompt_size: int | None = ...) -> None: ...

class LengthPenaltyParams(_Message):
    start: int
    factor: float
    def __init__(self, *, start: int | None = ..., factor: float | None = ...) -> None: ...

class SequenceBias(_Message):
    @property
    def token_ids(self) -> _Scalars[int]: ...
    bias: float
    def __init__(self, *, token_ids: _Iterable[int] | None = ..., bias: float | None = ...) -> None: ...

class TokenBanRange(_Message):
    @property
    def token_ids(self) -> _Scalars[int]: ...
    start: int
    length: int
    def __init__(self, *, token_ids: _Iterable[int] | None = ..., start: int | None = ...,
                 length: int | None = ...) -> None: ...

class RepetitionDetectionParams(_Message):
    max_pattern_size: int
    min_pattern_size: int
    min_count: int
    def __init__(self, *, max_pattern_size: int | None = ..., min_pattern_size: int | None = ...,
                 min_count: int | None = ...) -> None: ...

class GrammarParams(_Message):
    json_schema: str
    regex: str
    lark: str
    gbnf: str
    choices: str
    @property
    def start_token_ids(self) -> _Scalars[int]: ...
    @property
    def start_sequences(self) -> _Messages[TokenSequence]: ...
    start_position: int
    def __init__(self, *, json_schema: str | None = ..., regex: str | None = ..., lark: str | None = ...,
                 gbnf: str | None = ..., choices: str | None = ..., start_token_ids: _Iterable[int] | None = ...,
                 start_sequences: _Iterable[TokenSequence | _Fields] | None = ...,
                 start_position: int | None = ...) -> None: ...

class ThinkingBudgetParams(_Message):
    @property
    def start_token_ids(self) -> _Scalars[int]: ...
    @property
    def end_token_ids(self) -> _Scalars[int]: ...
    budget: int
    @property
    def forced_token_ids(self) -> _Scalars[int]: ...
    @property
    def other_ends(self) -> _Messages[TokenSequence]: ...
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    def __init__(self, *, start_token_ids: _Iterable[int] | None = ..., end_token_ids: _Iterable[int] | None = ...,
                 budget: int | None = ..., forced_token_ids: _Iterable[int] | None = ...,
                 other_ends: _Iterable[TokenSequence | _Fields] | None = ..., temperature: float | None = ...,
                 top_k: int | None = ..., top_p: float | None = ..., min_p: float | None = ...) -> None: ...

class TokenSequence(_Message):
    @property
    def token_ids(self) -> _Scalars[int]: ...
    def __init__(self, *, token_ids: _Iterable[int] | None = ...) -> None: ...

class ReportParams(_Message):
    support_size: bool
    max_surviving_token_ids: int
    entropy: bool
    @property
    def why_not_token_ids(self) -> _Scalars[int]: ...
    def __init__(self, *, support_size: bool | None = ..., max_surviving_token_ids: int | None = ...,
                 entropy: bool | None = ..., why_not_token_ids: _Iterable[int] | None = ...) -> None: ...

class LogprobsParams(_Message):
    top_n: int
    mode: int
    @property
    def token_ids(self) -> _Scalars[int]: ...
    def __init__(self, *, top_n: int | None = ..., mode: int | str | None = ...,
                 token_ids: _Iterable[int] | None = ...) -> None: ...

class AcceptanceParams(_Message):
    rule: int
    typical_epsilon: float
    typical_alpha: float
    relaxed_top_n: int
    relaxed_delta: float
    synthetic_rate: float
    relaxed_in_thinking_only: bool
    def __init__(self, *, rule: int | str | None = ..., typical_epsilon: float | None = ...,
                 typical_alpha: float | None = ..., relaxed_top_n: int | None = ..., relaxed_delta: float | None = ...,
                 synthetic_rate: float | None = ..., relaxed_in_thinking_only: bool | None = ...) -> None: ...

class ProposerParams(_Message):
    kind: int
    max_draft_tokens: int
    min_match: int
    max_match: int
    min_token_prob: float
    def __init__(self, *, kind: int | str | None = ..., max_draft_tokens: int | None = ..., min_match: int | None = ...,
                 max_match: int | None = ..., min_token_prob: float | None = ...) -> None: ...

class DraftLengthParams(_Message):
    draft_cost: float
    verify_cost: float
    max_draft_tokens: int
    def __init__(self, *, draft_cost: float | None = ..., verify_cost: float | None = ...,
                 max_draft_tokens: int | None = ...) -> None: ...

class RegionRequest(_Message):
    @property
    def hello(self) -> RegionHello: ...
    @property
    def lease(self) -> LeaseRegion: ...
    @property
    def release(self) -> ReleaseRegion: ...
    @property
    def attach(self) -> AttachRegion: ...
    @property
    def lend(self) -> LendRegion: ...
    def __init__(self, *, hello: RegionHello | _Fields | None = ..., lease: LeaseRegion | _Fields | None = ...,
                 release: ReleaseRegion | _Fields | None = ..., attach: AttachRegion | _Fields | None = ...,
                 lend: LendRegion | _Fields | None = ...) -> None: ...

class RegionHello(_Message):
    token: _Bytes
    def __init__(self, *, token: _Bytes | None = ...) -> None: ...

class LeaseRegion(_Message):
    bytes: int
    @property
    def device(self) -> RegionDevice: ...
    def __init__(self, *, bytes: int | None = ..., device: RegionDevice | _Fields | None = ...) -> None: ...

class RegionDevice(_Message):
    uuid: str
    def __init__(self, *, uuid: str | None = ...) -> None: ...

class LendRegion(_Message):
    uuid: str
    ipc_handle: _Bytes
    offset: int
    bytes: int
    def __init__(self, *, uuid: str | None = ..., ipc_handle: _Bytes | None = ..., offset: int | None = ...,
                 bytes: int | None = ...) -> None: ...

class AttachRegion(_Message):
    region_id: int
    generation: int
    def __init__(self, *, region_id: int | None = ..., generation: int | None = ...) -> None: ...

class ReleaseRegion(_Message):
    region_id: int
    generation: int
    def __init__(self, *, region_id: int | None = ..., generation: int | None = ...) -> None: ...

class RegionReply(_Message):
    @property
    def welcome(self) -> RegionWelcome: ...
    @property
    def leased(self) -> RegionLease: ...
    @property
    def released(self) -> RegionReleased: ...
    @property
    def error(self) -> RegionError: ...
    def __init__(self, *, welcome: RegionWelcome | _Fields | None = ..., leased: RegionLease | _Fields | None = ...,
                 released: RegionReleased | _Fields | None = ...,
                 error: RegionError | _Fields | None = ...) -> None: ...

class RegionWelcome(_Message):
    def __init__(self) -> None: ...

class RegionLease(_Message):
    region_id: int
    generation: int
    bytes: int
    device_uuid: str
    granularity: int
    def __init__(self, *, region_id: int | None = ..., generation: int | None = ..., bytes: int | None = ...,
                 device_uuid: str | None = ..., granularity: int | None = ...) -> None: ...

class RegionReleased(_Message):
    region_id: int
    generation: int
    def __init__(self, *, region_id: int | None = ..., generation: int | None = ...) -> None: ...

class RegionError(_Message):
    code: int
    reason: str
    field: str
    message: str
    def __init__(self, *, code: int | None = ..., reason: str | None = ..., field: str | None = ...,
                 message: str | None = ...) -> None: ...

class GetServerInfoRequest(_Message):
    def __init__(self) -> None: ...

class GetServerInfoResponse(_Message):
    version: str
    backend: str
    device: str
    parallelism: int
    @property
    def limits(self) -> Limits: ...
    @property
    def data_paths(self) -> _Scalars[str]: ...
    @property
    def work_kinds(self) -> _Scalars[str]: ...
    @property
    def parameters(self) -> _Scalars[str]: ...
    @property
    def logits_dtypes(self) -> _Scalars[str]: ...
    @property
    def presets(self) -> _Messages[Preset]: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    default_params: str
    device_uuid: str
    def __init__(self, *, version: str | None = ..., backend: str | None = ..., device: str | None = ...,
                 parallelism: int | None = ..., limits: Limits | _Fields | None = ...,
                 data_paths: _Iterable[str] | None = ..., work_kinds: _Iterable[str] | None = ...,
                 parameters: _Iterable[str] | None = ..., logits_dtypes: _Iterable[str] | None = ...,
                 presets: _Iterable[Preset | _Fields] | None = ..., vocabulary: Vocabulary | _Fields | None = ...,
                 default_params: str | None = ..., device_uuid: str | None = ...) -> None: ...

class Vocabulary(_Message):
    tokens: int
    texts: int
    sha256: str
    def __init__(self, *, tokens: int | None = ..., texts: int | None = ..., sha256: str | None = ...) -> None: ...

class Preset(_Message):
    name: str
    description: str
    params: str
    def __init__(self, *, name: str | None = ..., description: str | None = ..., params: str | None = ...) -> None: ...

class Limits(_Message):
    max_vocab_size: int
    max_message_bytes: int
    max_steps_in_flight_per_stream: int
    max_sequences_per_stream: int
    max_sequences: int
    max_history_tokens: int
    max_rows_per_step: int
    max_top_logprobs: int
    max_bytes_in_flight: int
    max_streams: int
    max_state_bytes: int
    max_row_bytes_per_step: int
    max_regions_per_stream: int
    max_bytes_per_region: int
    max_region_bytes: int
    max_device_region_bytes: int
    max_ranks_per_stream: int
    max_attached_ranks: int
    max_shards_ahead: int
    max_shard_bytes: int
    shard_timeout_ms: int
    max_top_n: int
    def __init__(self, *, max_vocab_size: int | None = ..., max_message_bytes: int | None = ...,
                 max_steps_in_flight_per_stream: int | None = ..., max_sequences_per_stream: int | None = ...,
                 max_sequences: int | None = ..., max_history_tokens: int | None = ...,
                 max_rows_per_step: int | None = ..., max_top_logprobs: int | None = ...,
                 max_bytes_in_flight: int | None = ..., max_streams: int | None = ...,
                 max_state_bytes: int | None = ..., max_row_bytes_per_step: int | None = ...,
                 max_regions_per_stream: int | None = ..., max_bytes_per_region: int | None = ...,
                 max_region_bytes: int | None = ..., max_device_region_bytes: int | None = ...,
                 max_ranks_per_stream: int | None = ..., max_attached_ranks: int | None = ...,
                 max_shards_ahead: int | None = ..., max_shard_bytes: int | None = ...,
                 shard_timeout_ms: int | None = ..., max_top_n: int | None = ...) -> None: ...

BeyondTopN: _Enum
RemovedBy: _Enum
SamplerKind: _Enum
EngineOrder: _Enum
SeedingScheme: _Enum
LogitsDtype: _Enum
LogprobsMode: _Enum
AcceptanceRule: _Enum
ProposerKind: _Enum
LastToken: _Enum
FinishReason: _Enum
OpenStatus: _Enum
RowStatus: _Enum

BEYOND_TOP_N_UNSPECIFIED: int
BEYOND_TOP_N_REFUSE: int
BEYOND_TOP_N_MARK: int
REMOVED_BY_UNSPECIFIED: int
REMOVED_BY_RAW_LOGIT: int
REMOVED_BY_FORCED_TOKEN: int
REMOVED_BY_ALLOWED_TOKEN_IDS: int
REMOVED_BY_BANNED_TOKEN_IDS: int
REMOVED_BY_BAD_WORDS: int
REMOVED_BY_MIN_TOKENS: int
REMOVED_BY_TOKEN_BAN_RANGES: int
REMOVED_BY_NO_REPEAT_NGRAM: int
REMOVED_BY_PENALTIES: int
REMOVED_BY_GREEDY: int
REMOVED_BY_SAMPLER: int
REMOVED_BY_PRECISION: int
REMOVED_BY_WATERMARK: int
REMOVED_BY_TOKEN_MASK: int
SAMPLER_KIND_UNSPECIFIED: int
SAMPLER_KIND_TEMPERATURE: int
SAMPLER_KIND_SMOOTHING: int
SAMPLER_KIND_TOP_N_SIGMA: int
SAMPLER_KIND_TOP_H: int
SAMPLER_KIND_TOP_K: int
SAMPLER_KIND_TOP_P: int
SAMPLER_KIND_MIN_P: int
SAMPLER_KIND_TYPICAL_P: int
SAMPLER_KIND_TFS: int
SAMPLER_KIND_TOP_A: int
SAMPLER_KIND_EPSILON_CUTOFF: int
SAMPLER_KIND_ETA_CUTOFF: int
SAMPLER_KIND_XTC: int
SAMPLER_KIND_P_LESS: int
SAMPLER_KIND_MIROSTAT: int
SAMPLER_KIND_ADAPTIVE_P: int
SAMPLER_KIND_SKEW: int
SAMPLER_KIND_INFILL: int
SAMPLER_KIND_DYNAMIC_TEMPERATURE: int
SAMPLER_KIND_MIN_EOS_P: int
SAMPLER_KIND_MIN_K: int
ENGINE_ORDER_UNSPECIFIED: int
ENGINE_ORDER_CROUPIER: int
ENGINE_ORDER_LLAMA_CPP: int
ENGINE_ORDER_VLLM: int
ENGINE_ORDER_TRANSFORMERS: int
ENGINE_ORDER_TEXT_GENERATION_WEBUI: int
ENGINE_ORDER_EXLLAMA: int
ENGINE_ORDER_SGLANG: int
ENGINE_ORDER_KOBOLD_CPP: int
ENGINE_ORDER_EXLLAMA_V3: int
ENGINE_ORDER_MLX: int
ENGINE_ORDER_TENSORRT_LLM: int
ENGINE_ORDER_MISTRAL_RS: int
SEEDING_SCHEME_UNSPECIFIED: int
SEEDING_SCHEME_LEFTHASH: int
SEEDING_SCHEME_SELFHASH: int
LOGITS_DTYPE_UNSPECIFIED: int
LOGITS_DTYPE_F32: int
LOGITS_DTYPE_F16: int
LOGITS_DTYPE_BF16: int
LOGPROBS_MODE_UNSPECIFIED: int
LOGPROBS_MODE_RAW: int
LOGPROBS_MODE_PROCESSED: int
LOGPROBS_MODE_TEMPERED: int
ACCEPTANCE_RULE_UNSPECIFIED: int
ACCEPTANCE_RULE_REJECTION: int
ACCEPTANCE_RULE_GREEDY: int
ACCEPTANCE_RULE_BLOCK: int
ACCEPTANCE_RULE_TYPICAL: int
ACCEPTANCE_RULE_RELAXED: int
ACCEPTANCE_RULE_SYNTHETIC: int
PROPOSER_KIND_UNSPECIFIED: int
PROPOSER_KIND_NGRAM: int
PROPOSER_KIND_SUFFIX: int
PROPOSER_KIND_GRAMMAR: int
LAST_TOKEN_UNSPECIFIED: int
LAST_TOKEN_RECOVERED: int
LAST_TOKEN_BONUS: int
LAST_TOKEN_ACCEPTED: int
FINISH_REASON_UNSPECIFIED: int
FINISH_REASON_EOS: int
FINISH_REASON_STOP_TOKEN: int
FINISH_REASON_MAX_TOKENS: int
FINISH_REASON_REPETITION: int
FINISH_REASON_STOP_SEQUENCE: int
OPEN_STATUS_UNSPECIFIED: int
OPEN_STATUS_OK: int
OPEN_STATUS_INVALID_ARGUMENT: int
OPEN_STATUS_ALREADY_EXISTS: int
OPEN_STATUS_RESOURCE_EXHAUSTED: int
OPEN_STATUS_UNIMPLEMENTED: int
ROW_STATUS_UNSPECIFIED: int
ROW_STATUS_OK: int
ROW_STATUS_NAN_LOGITS: int
ROW_STATUS_POSITIVE_INFINITY: int
ROW_STATUS_ALL_MASKED: int
ROW_STATUS_UNKNOWN_SEQUENCE: int
ROW_STATUS_SEQUENCE_FINISHED: int
ROW_STATUS_DUPLICATE_SEQUENCE: int
ROW_STATUS_ROW_OUT_OF_RANGE: int
ROW_STATUS_INVALID_WORK: int
ROW_STATUS_HISTORY_LIMIT: int
ROW_STATUS_DEADLINE_EXCEEDED: int
ROW_STATUS_UNIMPLEMENTED: int
ROW_STATUS_INTERNAL: int
ROW_STATUS_GRAMMAR_TOO_COMPLEX: int
ROW_STATUS_REPLY_BYTES: int
ROW_STATUS_SHARD_MISSING: int
ROW_STATUS_SHARD_MISMATCH: int
ROW_STATUS_BEYOND_TOP_N: int
