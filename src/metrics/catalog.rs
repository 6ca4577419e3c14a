//! The metric catalogue: the one place where a metric's name, type, unit, labels, buckets and help are written.

use metrics::{Counter, Gauge, Histogram, Key, Label, Metadata, Recorder, Unit};

/// Latency of whole calls: the buckets of gRFC A66, for comparison with other gRPC servers.
const CALL_SECONDS: &[f64] = &[
    0.0, 0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01,
    0.013, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8,
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
];
/// Latency of a step. The buckets are fine where a sampler normally is, between microseconds and milliseconds, and
/// reach up to where a step is in trouble, so that a quantile still says by how much.
const STEP_SECONDS: &[f64] = &[
    5e-6, 1e-5, 2e-5, 3e-5, 5e-5, 7.5e-5, 1e-4, 1.5e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2.5e-2, 5e-2,
    0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];
/// Message sizes: the buckets of gRFC A66.
const BYTES: &[f64] = &[
    0.0,
    1024.0,
    2048.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
    4_294_967_296.0,
];
/// Batch sizes: powers of two, as batches are built.
const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

/// Probabilities.
const SHARES: &[f64] = &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0];
/// Probabilities by position in a draft. There are many such series, so they have few buckets; their means say most.
/// All values are at most 1, so the bucket with all of them serves as the one up to 1.
const SHARES_BY_POSITION: &[f64] = &[0.1, 0.25, 0.5, 0.75, 0.9];
/// Shares whose mean is all that matters.
const MEAN_SHARES: &[f64] = &[0.5];
/// Ranks of tokens. A tenth and half of each common vocabulary, from 32,000 to 262,144 tokens, lie in different buckets.
pub(crate) const RANKS: &[f64] = &[
    1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 20_000.0, 50_000.0, 100_000.0,
    200_000.0,
];

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One metric.
#[derive(Debug)]
pub(crate) struct Def {
    pub(crate) name: &'static str,
    pub(super) kind: Kind,
    /// `None` for shares, 0 to 1.
    pub(super) unit: Option<Unit>,
    pub(super) help: &'static str,
    pub(crate) buckets: &'static [f64],
}

static METADATA: Metadata<'static> = Metadata::new(module_path!(), metrics::Level::INFO, None);

impl Def {
    const fn counter(name: &'static str, unit: Unit, help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, unit: Some(unit), help, buckets: &[] }
    }

    const fn gauge(name: &'static str, unit: Unit, help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, unit: Some(unit), help, buckets: &[] }
    }

    const fn histogram(name: &'static str, unit: Unit, buckets: &'static [f64], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, unit: Some(unit), help, buckets }
    }

    /// A histogram of shares.
    const fn shares(name: &'static str, buckets: &'static [f64], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, unit: None, help, buckets }
    }

    fn key(&self, labels: &[(&'static str, &str)]) -> Key {
        let labels: Vec<Label> = labels.iter().map(|&(k, v)| Label::new(k, v.to_owned())).collect();
        Key::from_parts(self.name, labels)
    }

    /// Registers the series and returns its handle. The series is exported at 0 from now on.
    pub(super) fn as_counter(&self, recorder: &dyn Recorder, labels: &[(&'static str, &str)]) -> Counter {
        debug_assert_eq!(self.kind, Kind::Counter);
        let counter = recorder.register_counter(&self.key(labels), &METADATA);
        counter.increment(0);
        counter
    }

    /// Registers the series and returns its handle. The series is exported at 0 from now on.
    pub(super) fn as_gauge(&self, recorder: &dyn Recorder, labels: &[(&'static str, &str)]) -> Gauge {
        debug_assert_eq!(self.kind, Kind::Gauge);
        let gauge = recorder.register_gauge(&self.key(labels), &METADATA);
        gauge.set(0.0);
        gauge
    }

    /// Registers the series and returns its handle. The series is exported from now on.
    pub(super) fn as_histogram(&self, recorder: &dyn Recorder, labels: &[(&'static str, &str)]) -> Histogram {
        debug_assert_eq!(self.kind, Kind::Histogram);
        recorder.register_histogram(&self.key(labels), &METADATA)
    }

    /// Gives the metric's meaning to the recorder.
    pub(super) fn describe(&self, recorder: &dyn Recorder) {
        let (name, help) = (self.name.into(), self.help.into());
        match self.kind {
            Kind::Counter => recorder.describe_counter(name, self.unit, help),
            Kind::Gauge => recorder.describe_gauge(name, self.unit, help),
            Kind::Histogram => recorder.describe_histogram(name, self.unit, help),
        }
    }
}

/// Declares the constants and `ALL` from one list, so that no metric can be missing from the descriptions.
macro_rules! catalog {
    ($($id:ident = $def:expr;)*) => {
        $(pub(crate) const $id: Def = $def;)*
        /// Every metric.
        pub(super) static ALL: &[Def] = &[$($def),*];
    };
}

catalog! {
    BUILD_INFO = Def::gauge("croupier_build_info", Unit::Count, "Always 1; the labels say what runs here.");
    READY = Def::gauge("croupier_ready", Unit::Count, "1 while the server takes work; 0 while it starts or drains, or its engine is stuck.");
    REQUESTS = Def::counter("croupier_requests_total", Unit::Count, "Calls that ended, by method and gRPC status code.");
    CALL_DURATION = Def::histogram("croupier_call_duration_seconds", Unit::Seconds, CALL_SECONDS,
        "Duration of calls from first to last byte; for Decode, how long its stream was open.");
    STREAMS = Def::gauge("croupier_streams", Unit::Count, "Decode streams open.");
    STREAMS_CAPACITY = Def::gauge("croupier_streams_capacity", Unit::Count, "Decode streams that may be open (max_streams).");
    CONNECTIONS = Def::gauge("croupier_connections", Unit::Count, "Connections open, by transport.");
    CONNECTIONS_CAPACITY = Def::gauge("croupier_connections_capacity", Unit::Count,
        "Connections that may be open on all transports together (max_connections).");
    HANDED_OVER = Def::counter("croupier_backend_handed_over_rows_total", Unit::Count,
        "Rows that the CPU processed beside the device in the same batch, by reason: those in the host's memory (host_rows), and those that the device has no kernel for.");
    REGIONS = Def::gauge("croupier_regions", Unit::Count, "Regions of shared and of device memory leased to workers, or lent by them.");
    REGION_BYTES = Def::gauge("croupier_region_bytes", Unit::Bytes,
        "Memory of regions, including released ones that a step still reads.");
    REGION_BYTES_CAPACITY = Def::gauge("croupier_region_capacity_bytes", Unit::Bytes,
        "Memory that regions may take (max_region_bytes).");
    DEVICE_REGION_BYTES = Def::gauge("croupier_device_region_bytes", Unit::Bytes,
        "Device memory of regions, including released ones that a step still reads; memory that workers lend is not counted.");
    DEVICE_REGION_BYTES_CAPACITY = Def::gauge("croupier_device_region_capacity_bytes", Unit::Bytes,
        "Device memory that regions may take (max_device_region_bytes); 0 where there is no device.");
    REGION_LEASES = Def::counter("croupier_region_leases_total", Unit::Count,
        "Requests for a region, by result: granted, or why not.");
    STEPS = Def::counter("croupier_steps_total", Unit::Count,
        "Steps accepted on streams (calls of Sample are not counted), by how their logits arrived: inline, shared_memory, device_memory, vocab_shards, top_n where all rows are lists, or none for steps without logits.");
    SHARDS = Def::counter("croupier_shards_total", Unit::Count,
        "Shards announced by ranks above 0, by how their columns arrived.");
    SHARD_RANKS = Def::gauge("croupier_shard_ranks", Unit::Count, "Ranks above 0 attached, or about to be.");
    SHARD_RANKS_CAPACITY = Def::gauge("croupier_shard_ranks_capacity", Unit::Count,
        "Ranks above 0 that may be attached (max_attached_ranks).");
    SHARD_BYTES = Def::gauge("croupier_shard_bytes", Unit::Bytes,
        "Bytes of messages with columns from ranks above 0, announced and not yet done with.");
    SHARD_BYTES_CAPACITY = Def::gauge("croupier_shard_capacity_bytes", Unit::Bytes,
        "Bytes that messages with columns from ranks above 0 may take while these are announced and not yet done with (max_shard_bytes).");
    SHARD_WAIT = Def::histogram("croupier_shard_wait_seconds", Unit::Seconds, STEP_SECONDS,
        "How long steps waited for their last shard, from when their turn came; steps that did not get all of their shards are not counted.");
    SHARD_FAILURES = Def::counter("croupier_shard_failures_total", Unit::Count,
        "Steps whose rows did not have all of their columns, by reason.");
    ACCEPT_ERRORS = Def::counter("croupier_accept_errors_total", Unit::Count,
        "Connections that the operating system could not hand over, for example for lack of file descriptors.");
    REJECTED = Def::counter("croupier_rejected_total", Unit::Count,
        "Connections, calls and steps refused or given up, by reason: a limit, a wrong message, TLS, a token, a timeout, or the server is stopping.");
    TLS_CERTIFICATE_EXPIRY = Def::gauge("croupier_tls_certificate_expiry_timestamp_seconds", Unit::Seconds,
        "Earliest expiry of the server's certificate and of those sent with it: seconds since the Unix epoch; 0 without TLS.");
    RELOADS = Def::counter("croupier_reloads_total", Unit::Count,
        "Times that changed certificate or token files were read; after a failure the previous ones stay in force.");
    RELOAD_PENDING = Def::gauge("croupier_reload_pending", Unit::Count,
        "1 while the certificate or token files that were read last are wrong and therefore not in force; else 0.");
    QUEUE_DEPTH = Def::gauge("croupier_queue_depth", Unit::Count, "Steps waiting for the backend.");
    QUEUE_CAPACITY = Def::gauge("croupier_queue_capacity", Unit::Count, "Steps that may wait (max_queued_steps).");
    IN_FLIGHT_BYTES = Def::gauge("croupier_in_flight_bytes", Unit::Bytes, "Bytes of messages received and not yet answered, and of replies not yet sent.");
    IN_FLIGHT_BYTES_CAPACITY = Def::gauge("croupier_in_flight_capacity_bytes", Unit::Bytes,
        "Bytes of messages that may be in flight (max_bytes_in_flight).");
    IN_FLIGHT_ROWS = Def::gauge("croupier_in_flight_rows", Unit::Count, "Rows received and not yet answered.");
    BATCH_ROWS = Def::histogram("croupier_batch_rows", Unit::Count, COUNTS, "Rows given to the backend at once.");
    BATCH_STEPS = Def::histogram("croupier_batch_steps", Unit::Count, COUNTS, "Steps gathered into one batch.");
    STEP_DURATION = Def::histogram("croupier_step_duration_seconds", Unit::Seconds, STEP_SECONDS,
        "Duration of a step by stage: queue, backend (of its whole batch), reply, and the total of these; before them receive, recorded for every message.");
    BATCH_DURATION = Def::histogram("croupier_batch_duration_seconds", Unit::Seconds, STEP_SECONDS,
        "How long the backend worked on one batch; the rate of its sum is the share of time in which the backend is busy.");
    WORKER_TURN = Def::histogram("croupier_worker_turn_seconds", Unit::Seconds, CALL_SECONDS,
        "How long streams waited for their workers: from the last reply that was due to the next message.");
    BACKEND_THREADS = Def::gauge("croupier_backend_threads", Unit::Count, "Threads that sample (threads).");
    GRAMMAR_WAIT = Def::histogram("croupier_grammar_wait_seconds", Unit::Seconds, STEP_SECONDS,
        "How long rows that have to match a grammar waited: batches for masks, and for what grammars force as drafts (2 ms \
         each at most), and what was set aside because that took longer, until it went on.");
    GRAMMAR_COMPILE = Def::histogram("croupier_grammar_compile_seconds", Unit::Seconds, STEP_SECONDS,
        "How long grammars took to compile; one that is compiled already is not compiled again.");
    REQUEST_BYTES = Def::histogram("croupier_request_bytes", Unit::Bytes, BYTES, "Encoded size of request messages of Decode, Attach and Sample.");
    RESPONSE_BYTES = Def::histogram("croupier_response_bytes", Unit::Bytes, BYTES, "Encoded size of response messages of Decode, Attach and Sample.");
    MODEL_LABELS = Def::gauge("croupier_model_labels", Unit::Count, "Model labels that have series of their own.");
    MODEL_LABELS_CAPACITY = Def::gauge("croupier_model_labels_capacity", Unit::Count,
        "Model labels that may have series of their own (max_model_labels); all others count as other.");
    TOKENS = Def::counter("croupier_tokens_total", Unit::Count, "Tokens emitted, by model label.");
    ROWS = Def::counter("croupier_rows_total", Unit::Count, "Rows answered with OK, by model label and kind of work.");
    ROWS_INVALID = Def::counter("croupier_rows_invalid_total", Unit::Count,
        "Rows answered with an error, by model label and row status.");
    ROWS_TRUNCATED = Def::counter("croupier_rows_truncated_total", Unit::Count,
        "Works whose rows list some tokens only, whose parameters reached beyond that list, and that were marked instead of refused; by model label.");
    ROWS_REPEATED = Def::counter("croupier_rows_repeated_total", Unit::Count,
        "Rows of sample and verify work that no model would give, judged by eight of their logits: equal to an earlier row of their text, to the row before the draft token that they follow, or to the row of another text in the step; or flat. Not counted where a text repeats one token; rows on a GPU, masked rows and rows of several shards are not checked.");
    SEQUENCES = Def::gauge("croupier_sequences_active", Unit::Count, "Sequences open.");
    SEQUENCES_CAPACITY = Def::gauge("croupier_sequences_capacity", Unit::Count, "Sequences that may be open (max_sequences).");
    STATE_BYTES = Def::gauge("croupier_state_bytes", Unit::Bytes,
        "Memory of the state of sequences, including waiting ones, of streams' default parameters and draft vocabularies, and of compiled grammars, some of which are kept for the next text.");
    STATE_BYTES_CAPACITY = Def::gauge("croupier_state_capacity_bytes", Unit::Bytes,
        "Memory that sequences, default parameters, draft vocabularies and grammars may take (max_state_bytes).");
    OPENINGS_FAILED = Def::counter("croupier_openings_failed_total", Unit::Count,
        "Sequences that a step or a row of Sample would have opened but could not, by model label and reason.");
    MODEL_STREAMS = Def::gauge("croupier_model_streams", Unit::Count, "Decode streams open, by model label.");
    MODEL_SEQUENCES = Def::gauge("croupier_model_sequences", Unit::Count,
        "Sequences open, by model label; those of Sample as long as their call is answered.");
    SEQUENCES_FINISHED = Def::counter("croupier_sequences_finished_total", Unit::Count,
        "Sequences that ended by themselves, by model label and finish reason.");
    SPEC_DRAFTS = Def::counter("croupier_spec_decode_num_drafts_total", Unit::Count,
        "Verifications of at least one draft token, by model label and proposer.");
    SPEC_DRAFT_TOKENS = Def::counter("croupier_spec_decode_num_draft_tokens_total", Unit::Count,
        "Draft tokens verified, by model label and proposer.");
    SPEC_ACCEPTED = Def::counter("croupier_spec_decode_num_accepted_tokens_total", Unit::Count,
        "Draft tokens accepted, by model label and proposer.");
    SPEC_ACCEPTED_PER_POS = Def::counter("croupier_spec_decode_num_accepted_tokens_per_pos_total", Unit::Count,
        "Draft tokens accepted, by how many draft tokens come before them; all positions add up to the draft tokens accepted.");
    SPEC_TESTED_PER_POS = Def::counter("croupier_spec_decode_num_tested_tokens_per_pos_total", Unit::Count,
        "Draft tokens that acceptance reached, including all siblings tested in a tree, by how many draft tokens come before them.");
    SPEC_EMITTED = Def::counter("croupier_spec_decode_num_emitted_tokens_total", Unit::Count,
        "Tokens emitted by verifications of at least one draft token, by whether they have the target's distribution; those from rows cut to their list do not.");
    SPEC_LAST = Def::counter("croupier_spec_decode_last_tokens_total", Unit::Count,
        "Last tokens of verifications of at least one draft token: recovered after a rejection, bonus, or accepted where the sequence ended, or a block ended before a row that cannot be sampled.");
    SPEC_REJECTED = Def::counter("croupier_spec_decode_num_measured_rejected_tokens_total", Unit::Count,
        "Measured first draft tokens of a position that were rejected, by reason: ruled_out (no probability in the target: a mask or ban, a filter, temperature 0, or a logit more than 27.7 times the temperature below the largest), unlikely (in the target less than a tenth of the draft's probability), chance, or rule (the rule does not use the ratio of the two probabilities).");
    SPEC_UNVERIFIED = Def::counter("croupier_spec_decode_num_unverified_tokens_total", Unit::Count,
        "Draft tokens of draft work forgotten without being verified: left out of a verification, restarted, or given up for another token; by model label.");
    SPEC_BEYOND_ADVICE = Def::counter("croupier_spec_decode_num_draft_tokens_beyond_advice_total", Unit::Count,
        "Draft tokens verified beyond the length that the sequence's last reply advised, by model label.");
    SPEC_WITHOUT_DISTRIBUTION = Def::counter("croupier_spec_decode_num_drafts_without_their_distribution_total", Unit::Count,
        "Verifications sent as deterministic although their draft tokens come from draft work, so that the distributions they were drawn from were thrown away and fewer are accepted; by model label.");
    SPEC_SEQUENCE_ACCEPTANCE = Def::shares("croupier_spec_decode_sequence_acceptance", SHARES,
        "Accepted over tested draft tokens of a sequence, recorded when it ended or was closed, for sequences with at least 16 tested; by model label.");
    SPEC_EXPECTED = Def::shares("croupier_spec_decode_expected_acceptance", SHARES_BY_POSITION,
        "Expected acceptance of measured draft tokens, by position; block verification is left out, and each random number counts once.");
    SPEC_MEASURED_ACCEPTED_PER_POS = Def::counter("croupier_spec_decode_num_measured_accepted_tokens_per_pos_total", Unit::Count,
        "Draft tokens that passed their test, of those that count in the expected acceptance, to compare with it; in a tree also those off the path that was taken.");
    SPEC_TOTAL_VARIATION = Def::shares("croupier_spec_decode_total_variation", SHARES,
        "Total variation between target and draft distribution of measured first draft tokens of a position: 0 equal, 1 disjoint.");
    SPEC_REJECTED_RANK = Def::histogram("croupier_spec_decode_rejected_rank", Unit::Count, RANKS,
        "Rank in the target of measured first draft tokens of a position that were rejected, by reason.");
    SPEC_DRAFT_PROBABILITY = Def::shares("croupier_spec_decode_draft_probability", SHARES_BY_POSITION,
        "Probability of measured draft tokens in the draft distribution that they are said to be drawn from; block verification is included, certain tokens are not.");
    SPEC_EXPECTED_DRAFT_PROBABILITY = Def::shares("croupier_spec_decode_expected_draft_probability", SHARES_BY_POSITION,
        "Mean draft probability of tokens that are drawn from the claimed draft distribution (the sum of its squared probabilities), to compare with the observed draft probability.");
    SPEC_DRAFT_PROBABILITY_VARIANCE = Def::shares("croupier_spec_decode_draft_probability_variance", MEAN_SHARES,
        "Variance of the draft probability of tokens that are drawn from the claimed draft distribution: the sum of its cubed probabilities, less the square of the mean. Summed, it is the variance of the difference between the sums of observed and mean draft probability.");
    SPEC_REPEATED_SIBLINGS = Def::counter("croupier_spec_decode_num_repeated_siblings_total", Unit::Count,
        "Measured draft tokens of a tree that are the same token as an earlier sibling.");
    SPEC_EXPECTED_REPEATED_SIBLINGS = Def::shares("croupier_spec_decode_expected_repeated_siblings", MEAN_SHARES,
        "Probability, in their draft distributions, that measured later siblings are the same token as an earlier one; certain ones are left out. Its sum is the expected number of repeated siblings.");
    SPEC_OWN_OVERLAP = Def::shares("croupier_spec_decode_own_overlap", MEAN_SHARES,
        "Overlap (the sum of min) of measured first draft tokens' distributions with their own rows, where there is a shifted overlap to compare it with; for late, the larger of that and the overlap of the second ones with their rows.");
    SPEC_SHIFTED_OVERLAP = Def::shares("croupier_spec_decode_shifted_overlap", MEAN_SHARES,
        "Overlap with rows one place off: of the first draft token's distribution with the row after its own (late), or of the second one's with the first one's row (early).");
    SPEC_SHIFTED_DRAFTS = Def::counter("croupier_spec_decode_num_shifted_drafts_total", Unit::Count,
        "Verifications whose shifted overlap is more than 0.3 larger than the own overlap that it is compared with; certain draft tokens are not counted.");
    SPEC_ROUNDS = Def::counter("croupier_spec_decode_num_rounds_total", Unit::Count,
        "Verifications of at least one draft token, by how the token before the draft came about, and whether a first draft token was accepted.");
    SPEC_ROUNDS_BY_LENGTH = Def::counter("croupier_spec_decode_num_rounds_by_length_total", Unit::Count,
        "Verifications of at least one draft token, by how many tokens their text has, and whether a first draft token was accepted.");
    TRACE_SPANS = Def::counter("croupier_trace_spans_total", Unit::Count,
        "Spans recorded, including those of stages, by what became of them: exported, dropped (the queue was full), or failed.");
    TRACE_CONTEXTS_INVALID = Def::counter("croupier_trace_contexts_invalid_total", Unit::Count,
        "Trace contexts of calls and steps that were ignored because they are invalid; without otlp_endpoint none are looked at.");
    PROCESS_CPU = Def::counter("process_cpu_seconds_total", Unit::Seconds, "User and system CPU time spent, whole seconds.");
    CPU_WAIT = Def::counter("croupier_cpu_wait_seconds_total", Unit::Seconds,
        "Time that threads of the process were ready to run and waited for a core, whole seconds; 0 where the kernel does not count it.");
    PROCESS_RESIDENT = Def::gauge("process_resident_memory_bytes", Unit::Bytes, "Resident memory.");
    PROCESS_VIRTUAL = Def::gauge("process_virtual_memory_bytes", Unit::Bytes, "Virtual memory.");
    PROCESS_OPEN_FDS = Def::gauge("process_open_fds", Unit::Count, "Open file descriptors.");
    PROCESS_MAX_FDS = Def::gauge("process_max_fds", Unit::Count, "File descriptors that may be open.");
    PROCESS_START = Def::gauge("process_start_time_seconds", Unit::Seconds, "Start of the process, seconds since the Unix epoch.");
    PROCESS_THREADS = Def::gauge("process_threads", Unit::Count, "Threads of the process.");
}
