//! Reports on how a token was chosen.

use super::samplers::kind;
use crate::params::report::ReportParams;
use crate::proto;
use crate::sampling::report::{Removed, Report, WhyNot};

/// What to report. Ranges are not checked yet.
pub(super) fn params(wire: proto::ReportParams) -> Box<ReportParams> {
    let proto::ReportParams { support_size, max_surviving_token_ids, entropy, why_not_token_ids } = wire;
    Box::new(ReportParams { support_size, max_surviving_token_ids, entropy, why_not_token_ids })
}

/// A report in its wire form.
pub(super) fn told(report: Report) -> proto::Report {
    let (entropy, raw_entropy) = report.entropy.unzip();
    proto::Report {
        support_size: report.support_size,
        surviving_token_ids: report.surviving,
        entropy,
        raw_entropy,
        why_not: report.why_not.into_iter().map(why_not).collect(),
    }
}

fn why_not(fate: WhyNot) -> proto::WhyNot {
    let sampler = match fate.removed {
        Some(Removed::Sampler(sampler)) => kind(sampler),
        _ => proto::SamplerKind::Unspecified,
    };
    proto::WhyNot {
        token_id: fate.token,
        removed_by: removed_by(fate.removed).into(),
        sampler: sampler.into(),
        raw_logit: fate.raw,
        adjusted_logit: fate.adjusted,
        probability: fate.probability,
        rank: fate.rank,
    }
}

fn removed_by(removed: Option<Removed>) -> proto::RemovedBy {
    use proto::RemovedBy as Wire;
    match removed {
        None => Wire::Unspecified,
        Some(Removed::RawLogit) => Wire::RawLogit,
        Some(Removed::ForcedToken) => Wire::ForcedToken,
        Some(Removed::AllowedTokenIds) => Wire::AllowedTokenIds,
        Some(Removed::BannedTokenIds) => Wire::BannedTokenIds,
        Some(Removed::BadWords) => Wire::BadWords,
        Some(Removed::MinTokens) => Wire::MinTokens,
        Some(Removed::TokenBanRanges) => Wire::TokenBanRanges,
        Some(Removed::NoRepeatNgram) => Wire::NoRepeatNgram,
        Some(Removed::Penalties) => Wire::Penalties,
        Some(Removed::Greedy) => Wire::Greedy,
        Some(Removed::Sampler(_)) => Wire::Sampler,
        Some(Removed::Precision) => Wire::Precision,
        Some(Removed::Watermark) => Wire::Watermark,
        Some(Removed::TokenMask) => Wire::TokenMask,
    }
}
