//! What the host and the kernels share: the structs and constants of `kernels/params.cuh`, field by field. A chunk is
//! the unit that a row is cut into; adjusts are what is known about single tokens.

use crate::sampling::adjust::TokenAdjust;
use bytemuck::{Pod, Zeroable};

/// Threads of a block.
pub const THREADS: u32 = 512;
/// How many tokens of a chunk a thread looks at.
pub const PER_THREAD: u32 = 16;
/// The most chunks that a block keeps notes about.
pub const SLICE_CHUNKS: u32 = 24;
/// The most blocks that work on one row.
pub const MAX_TEAM: u32 = 8;
/// The bins of a histogram.
pub const BINS: u32 = 512;
/// The most tokens of a list, and so of a report.
pub const LISTED: u32 = 1024;

/// Temperature 0.
pub const GREEDY: u32 = 1;
/// Nothing is drawn.
pub const SCORE: u32 = 2;
/// Only tokens among the adjusts may be emitted.
pub const ONLY_LISTED: u32 = 4;
/// Report from the logits as sent.
pub const REPORT_RAW: u32 = 8;
/// Report from what the token is drawn from.
pub const REPORT_PROCESSED: u32 = 16;
/// Report without the token's rank.
pub const UNRANKED: u32 = 32;
/// Weigh by the terms of the entropy.
pub const ENTROPY: u32 = 64;
/// Weigh by the draft's masses of the tokens that are left.
pub const DRAFTED: u32 = 128;
/// Write the distribution that the token is drawn from.
pub const KEEP: u32 = 256;
/// Frequency and presence penalties are subtracted before the others multiply and divide.
pub const SUBTRACT_FIRST: u32 = 512;

/// The draft has no row: all its masses are among the adjusts.
pub const NO_ROW: u32 = 0;
/// A row of f32.
pub const ROW_F32: u32 = 1;
/// A row of f16.
pub const ROW_F16: u32 = 2;
/// A row of bf16.
pub const ROW_BF16: u32 = 3;
/// The row has probabilities, not logits.
pub const SENT: u32 = 4;

/// The row has a result.
pub const OK: u32 = 0;
/// [`RowError::Nan`](crate::sampling::row::RowError::Nan).
pub const NAN: u32 = 1;
/// [`RowError::PositiveInfinity`](crate::sampling::row::RowError::PositiveInfinity).
pub const POSITIVE_INFINITY: u32 = 2;
/// [`RowError::AllMasked`](crate::sampling::row::RowError::AllMasked).
pub const ALL_MASKED: u32 = 3;
/// The kernel contradicted itself, so there is no result.
pub const BROKEN: u32 = 4;
/// Results are filled with this byte before a launch. It makes a status that is none of these.
pub const UNWRITTEN: u8 = 0xFF;

/// The key of the last token that can have a probability above 0.
pub const LAST_KEY: u64 = 0xFF7F_FFFF_FFFF_FFFF;
/// The value of [`Left::listed`] if tokens are not listed.
pub const UNLISTED: u64 = u64::MAX;

/// One row as the kernels read it. Places are offsets in bytes from the start of the inputs; `report` and `left` are
/// offsets in the outputs.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // kernels/params.cuh says what they are.
pub struct RowJob {
    pub logits: u64,
    pub adjusts: u64,
    pub adjust_index: u64,
    pub requested: u64,
    pub report: u64,
    pub uniform: u64,
    pub min_p_need: u64,
    pub top_p_fraction: u64,
    pub last_key: u64,
    pub drafts: u64,
    pub left: u64,
    pub vocab_size: u32,
    pub flags: u32,
    pub top_k: u32,
    pub adjust_count: u32,
    pub scale: f32,
    pub raw_scale: f32,
    pub repetition: f32,
    pub frequency: f32,
    pub presence: f32,
    pub encoder: f32,
    pub length: f32,
    pub place: u32,
    pub last_n: u32,
    pub decay_n: u32,
    pub token: u32,
    pub top_n: u32,
    pub requested_count: u32,
    pub max: f32,
    pub draft_count: u32,
    pub most_left: u32,
}

/// The distribution of a draft token, as the kernels read it.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct DraftRow {
    pub row: u64,
    pub masses: u64,
    pub last_key: u64,
    pub need: u64,
    pub of_target: f64,
    pub of_draft: f64,
    pub max: f32,
    pub scale: f32,
    pub format: u32,
    pub vocab_size: u32,
}

/// A row of some columns that is written as a row of the whole vocabulary. `from` is an address, the other places are
/// offsets in the inputs.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SpreadJob {
    pub from: u64,
    pub to: u64,
    pub tokens: u64,
    pub columns: u32,
    pub vocab_size: u32,
}

/// The result of a row, as the kernels write it.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RowResult {
    pub total: u64,
    pub last_key: u64,
    pub first_key: u64,
    pub status: u32,
    pub token: u32,
    pub logit: f32,
    pub max: f32,
    pub rank: u32,
    pub top_count: u32,
}

/// A token of a report.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ReportedToken {
    pub token: u32,
    pub logit: f32,
}

/// The distribution that a token was drawn from, as the kernels write it.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Left {
    pub total: u64,
    pub last_key: u64,
    pub listed: u64,
}

/// How many bytes of global memory a block has. They are all zero before the first launch.
pub const SCRATCH_BYTES: usize = 16 + 2 * (8 * (3 + BINS as usize + LISTED as usize));

const _: () = {
    assert!(size_of::<TokenAdjust>() == 16);
    assert!(size_of::<DraftRow>() == 64);
    assert!(size_of::<RowJob>() == 168);
    assert!(size_of::<SpreadJob>() == 32);
    assert!(size_of::<RowResult>() == 48);
    assert!(size_of::<ReportedToken>() == 8);
    assert!(size_of::<Left>() == 24);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// `name` in `kernels/params.cuh`.
    fn constant(name: &str) -> u32 {
        let text = include_str!("../../../kernels/params.cuh");
        let line = text.lines().find(|line| line.starts_with(&format!("constexpr u32 {name} ="))).expect(name);
        line.split_once("= ").and_then(|(_, rest)| rest.split_once(';')?.0.parse().ok()).expect(name)
    }

    #[test]
    fn constants_are_those_of_the_kernels() {
        let pairs = [
            ("kPerThread", PER_THREAD),
            ("kSliceChunks", SLICE_CHUNKS),
            ("kMaxTeam", MAX_TEAM),
            ("kBins", BINS),
            ("kListed", LISTED),
            ("kGreedy", GREEDY),
            ("kScore", SCORE),
            ("kOnlyListed", ONLY_LISTED),
            ("kReportRaw", REPORT_RAW),
            ("kReportProcessed", REPORT_PROCESSED),
            ("kUnranked", UNRANKED),
            ("kEntropy", ENTROPY),
            ("kDrafted", DRAFTED),
            ("kKeep", KEEP),
            ("kSubtractFirst", SUBTRACT_FIRST),
            ("kNoRow", NO_ROW),
            ("kRowF32", ROW_F32),
            ("kRowF16", ROW_F16),
            ("kRowBf16", ROW_BF16),
            ("kSent", SENT),
            ("kBroken", BROKEN),
            ("kOk", OK),
            ("kNan", NAN),
            ("kPositiveInfinity", POSITIVE_INFINITY),
            ("kAllMasked", ALL_MASKED),
            ("kBanned", TokenAdjust::BANNED),
            ("kSeen", TokenAdjust::SEEN),
            ("kPrompt", TokenAdjust::PROMPT),
            ("kEnds", TokenAdjust::END),
            ("kLate", TokenAdjust::LATE),
            ("kPlaceShift", TokenAdjust::PLACE),
        ];
        for (name, value) in pairs {
            assert_eq!(constant(name), value, "{name}");
        }
        let text = include_str!("../../../kernels/params.cuh");
        assert!(text.contains(&format!("#define CROUPIER_THREADS {THREADS}\n")));
        assert!(include_str!("../../../kernels/numbers.cuh").contains(&format!("kLastKey = 0x{LAST_KEY:X}ull;")));
        assert!(text.contains("constexpr u64 kUnlisted = ~0ull;") && UNLISTED == !0);
    }

    #[test]
    fn fields_stand_in_the_same_order() {
        let text = include_str!("../../../kernels/params.cuh");
        let here = include_str!("abi.rs");
        for name in ["RowJob", "DraftRow", "SpreadJob", "RowResult", "ReportedToken", "Left"] {
            let fields = |text: &str, opening: &str| -> String {
                let body = text.split_once(opening).expect(name).1.split_once("\n}").expect(name).0;
                let words = body.lines().filter_map(|line| line.trim().split(['/', ';', ',']).next());
                words.filter(|w| !w.is_empty()).map(|w| w.trim_start_matches("pub ").to_owned() + "\n").collect()
            };
            let kernel = fields(text, &format!("struct {name} {{"));
            let kernel: Vec<(&str, &str)> = kernel.lines().filter_map(|l| l.trim().split_once(' ')).collect();
            let host = fields(here, &format!("pub struct {name} {{"));
            let host: Vec<(&str, &str)> = host.lines().filter_map(|l| l.trim().split_once(": ")).collect();
            assert!(kernel.len() > 1);
            assert_eq!(kernel.len(), host.len(), "{name}");
            for ((kind, field), (host_field, host_kind)) in kernel.into_iter().zip(host) {
                assert_eq!(
                    (field, kind.replace("float", "f32").replace("double", "f64")),
                    (host_field, host_kind.to_owned()),
                    "{name}"
                );
            }
        }
    }
}
