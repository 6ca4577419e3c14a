//! What rows of these rules report about how their tokens were chosen.

use super::Rules;
use crate::params::LogprobsParams;
use crate::params::report::ReportParams;
use crate::sampling::report::{Bans, Report, ReportSpec, WhyNot};

impl Rules {
    /// What to report, if anything.
    fn wanted(&self) -> Option<&ReportParams> {
        self.inherited(|rules| rules.params.samplers.report.as_deref()).filter(|wanted| !wanted.is_off())
    }

    /// Whether rows report why tokens were not chosen.
    pub(in crate::sequence) fn explains(&self) -> bool {
        self.wanted().is_some_and(|wanted| !wanted.why_not_token_ids.is_empty())
    }

    /// The most bytes of the lists that are reported for a token. `logprobs` replaces the setting of these rules.
    pub(in crate::sequence) fn most_reported_bytes(&self, logprobs: Option<&LogprobsParams>) -> usize {
        let logprobs = logprobs.or(self.logprobs()).map_or(0, LogprobsParams::reported_bytes);
        let report = self.wanted().map_or(0, |wanted| {
            let surviving = wanted.max_surviving_token_ids as usize * size_of::<u32>();
            size_of::<Report>() + surviving + wanted.why_not_token_ids.len() * size_of::<WhyNot>()
        });
        logprobs + report
    }

    /// What a row at this position of the output reports. `tail` is the end of the output.
    pub(super) fn report<'a>(&'a self, forced: bool, position: u64, tail: &'a [u32]) -> Option<ReportSpec<'a>> {
        let params = self.wanted()?;
        let (ends, ranges) = (self.ends_banned_at(position), self.ban_ranges());
        let words = self.bad_words();
        Some(ReportSpec { params, bans: Bans { forced, position, ends, words, tail, ranges } })
    }
}
