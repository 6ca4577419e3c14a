//! The closed sets of label values. A value outside its set counts as "other", so that no client can create series.

/// The label for every value outside a set.
pub(super) const OTHER: &str = "other";

/// gRPC methods.
pub(super) const METHODS: &[&str] = &["Decode", "Attach", "Sample", "GetServerInfo", OTHER];

/// gRPC status codes, by their standard names.
pub(super) const CODES: &[&str] = &[
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
    OTHER,
];

/// Row statuses other than OK: the wire's `RowStatus` in lower case. Two more are finer than the wire: the server limit
/// that is `history_limit` there, and the row of a sequence that its own step could not open, `unknown_sequence` there.
pub(super) const ROW_STATUSES: &[&str] = &[
    "nan_logits",
    "positive_infinity",
    "all_masked",
    "unknown_sequence",
    "sequence_finished",
    "duplicate_sequence",
    "row_out_of_range",
    "invalid_work",
    "history_limit",
    "deadline_exceeded",
    "unimplemented",
    "internal",
    "grammar_too_complex",
    "reply_bytes",
    "shard_missing",
    "shard_mismatch",
    "beyond_top_n",
    "state_bytes",
    "not_opened",
    OTHER,
];

/// Why a sequence was not opened; see `sequence::OpenError`.
pub(super) const OPEN_ERRORS: &[&str] = &[
    "invalid_argument",
    "unimplemented",
    "already_exists",
    "history_limit",
    "too_many_sequences_per_stream",
    "too_many_sequences",
    "state_bytes",
    "grammars_busy",
    OTHER,
];

/// Why a row was handed to another backend; see `backend::cuda::ask::NoKernel`.
pub(super) const HANDED_OVER: &[&str] = &[
    "top_logprobs",
    "too_large",
    "chain",
    "report",
    "watermark",
    "two_biases",
    "token_mask",
    "top_n",
    "tempered_logprobs",
    "host_memory",
    "contradiction",
    OTHER,
];

/// Finish reasons: the wire's `FinishReason` in lower case.
pub(super) const FINISH_REASONS: &[&str] = &["eos", "stop_token", "max_tokens", "repetition", "stop_sequence", OTHER];

/// The position of `value` in `set`, ignoring case and underscores, so that "InvalidArgument" and "INVALID_ARGUMENT"
/// are the same. Unknown values get the position of "other", with which every set ends.
pub(super) fn index(set: &[&str], value: &str) -> usize {
    set.iter().position(|known| same(known, value)).unwrap_or(set.len() - 1)
}

fn same(a: &str, b: &str) -> bool {
    a == b || letters(a).eq(letters(b))
}

fn letters(s: &str) -> impl Iterator<Item = u8> + '_ {
    s.bytes().filter(|&c| c != b'_').map(|c| c.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{FinishReason, RowStatus};

    #[test]
    fn values_are_found_whatever_their_case_and_others_are_other() {
        assert_eq!(CODES[index(CODES, "InvalidArgument")], "INVALID_ARGUMENT");
        assert_eq!(CODES[index(CODES, "Ok")], "OK");
        assert_eq!(ROW_STATUSES[index(ROW_STATUSES, "something new")], OTHER);
        for set in [METHODS, CODES, ROW_STATUSES, OPEN_ERRORS, FINISH_REASONS] {
            assert_eq!(set.last(), Some(&OTHER));
        }
    }

    /// The names of the wire's enum from value `from` on, in lower case, then "other". Some numbers may be missing.
    fn wire(prefix: &str, from: i32, name: impl Fn(i32) -> Option<&'static str>) -> Vec<String> {
        let mut names: Vec<String> =
            (from..from + 256).filter_map(name).map(|n| n.trim_start_matches(prefix).to_lowercase()).collect();
        names.push(OTHER.to_owned());
        names
    }

    #[test]
    fn the_sets_are_the_wires_enums() {
        let status = |i| RowStatus::try_from(i).ok().map(|s| s.as_str_name());
        let mut statuses = wire("ROW_STATUS_", RowStatus::Ok as i32 + 1, status);
        let causes = ["state_bytes", "not_opened"].map(str::to_owned);
        statuses.splice(statuses.len() - 1..statuses.len() - 1, causes);
        assert_eq!(statuses, ROW_STATUSES);
        let reason = |i| FinishReason::try_from(i).ok().map(|r| r.as_str_name());
        assert_eq!(wire("FINISH_REASON_", FinishReason::Unspecified as i32 + 1, reason), FINISH_REASONS);
    }
}
