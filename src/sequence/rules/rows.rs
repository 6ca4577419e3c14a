//! What rules ask of a row.

use super::{Rules, watermark};
use crate::params::state::SamplerState;
use crate::params::{Decay, Filters, Penalties};
use crate::sampling::adjust::{Adjusts, TokenAdjust};
use crate::sampling::chain::Chain;
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::{Action, LogprobsSpec, RowSpec};
use crate::sequence::history::HistoryView;
use crate::sequence::length;
use crate::sequence::memory::PositionState;

/// What a row's filters and random numbers depend on.
struct RowPosition {
    seed: u64,
    position: u64,
    /// Top-p there, unless thinking has one of its own.
    top_p: f32,
    thinks: bool,
}

impl Rules {
    /// The penalties of a row. `place` is that of its token in the text, numbered from 1; `position` is that in the
    /// output.
    fn penalties(&self, place: u64, position: u64) -> Penalties {
        let decay = match self.window() {
            Some(window) if window.decays => Decay {
                place: place as u16,
                last_n: self.params.history.penalty_last_n as u16,
                decay_n: self.params.history.penalty_decay_n as u16,
            },
            _ => Decay::OFF,
        };
        let length = self.params.history.length_penalty.filter(|_| !self.params.ignore_eos);
        let length = length.map_or(0.0, |params| length::share(&params, position));
        Penalties { decay, length, ..self.params.penalties() }
    }

    /// What to ask of the row that stands here.
    pub(in crate::sequence) fn spec<'a>(&'a self, seed: u64, here: HistoryView<'a>, action: Action) -> RowSpec<'a> {
        let at = RowPosition { seed, position: here.position(), top_p: here.top_p(), thinks: here.thinks() };
        if !here.forced().is_empty() {
            return self.forced_row(at, here.forced(), action);
        }
        let report = self.report(false, here.position(), here.tail());
        let nudges = here.now().map_or(&[][..], PositionState::nudges);
        let adjusts = Adjusts::new(self.adjusts(here), here.over()).nudged(nudges).biased_late(self.biases_late());
        let penalties = self.penalties(here.place(), here.position());
        let row = RowSpec { penalties, adjusts, banned: here.banned(), report, ..self.row(at, action) };
        watermark::marked(&self.params, self.table.as_deref(), here.now(), row)
    }

    /// A row that has to give this token, even if it is banned or not allowed.
    fn forced_row<'a>(&'a self, at: RowPosition, token: &'a [u32], action: Action) -> RowSpec<'a> {
        let report = self.report(true, at.position, &[]);
        RowSpec { allowed: Some(token), report, ..self.row(at, action) }
    }

    pub(super) fn adjusts<'a>(&'a self, here: HistoryView<'a>) -> &'a [TokenAdjust] {
        if self.remembers_output() { here.known() } else { self.fixed() }
    }

    /// The part of a row that depends on little of the history.
    fn row(&self, at: RowPosition, action: Action) -> RowSpec<'_> {
        let RowPosition { seed, position, top_p, thinks } = at;
        let (filters, steps) = match self.thinking().filter(|_| thinks) {
            Some(thinking) => (thinking.filters(position, top_p), thinking.steps.as_deref()),
            None => (Filters { top_p, ..self.params.filters(position) }, self.steps()),
        };
        RowSpec {
            filters,
            chain: steps.map(|steps| Chain {
                steps,
                min_keep: self.params.samplers.min_keep,
                protected: self.protected(),
                eos: self.likely_ends(),
                xtc: uniform(seed, position, Purpose::Xtc),
                state: SamplerState::default(),
                infill: self.infill(),
                tournament: None,
            }),
            penalties: Penalties::OFF,
            adjusts: Adjusts::default(),
            banned: &[],
            allowed: self.allowed(),
            mask: None,
            mark: self.params.watermark().and_then(watermark::everywhere),
            action,
            logprobs: self.logprobs().map(|wanted| LogprobsSpec {
                top_n: wanted.top_n,
                mode: wanted.mode,
                tokens: &wanted.token_ids,
            }),
            report: None,
        }
    }
}
