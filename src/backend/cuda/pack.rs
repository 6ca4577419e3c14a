//! Turns the jobs of a batch into the bytes that kernels read, and the bytes that they write into results. This is
//! plain data and arithmetic: the same with a GPU and in the tests that run the kernels on a CPU.

use super::abi::{self, DraftRow, Left, ReportedToken, RowResult as Written};
use super::ask::{Asked, RowTask, WeighBy, listed, row_of};
use super::keep;
use super::known::{know_too, merge};
use super::machine::{ALIGNMENT, DeviceRow};
use super::read::Answer;
use super::tables::Tables;
use crate::backend::cpu::{Proposed, Source, keys};
use crate::sampling::adjust::TokenAdjust;
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::mass;
use crate::sampling::row::{Action, LogprobsMode, RowSpec};
use crate::speculative::weights::Residual;
use bytemuck::bytes_of;
use std::ops::Range;

/// Gathers the rows of one launch. Its lists keep their memory from launch to launch.
#[derive(Debug)]
pub struct Packer {
    /// The number of tokens in a chunk.
    chunk: u32,
    rows: Vec<abi::RowJob>,
    drafts: Vec<DraftRow>,
    /// For each draft, its masses of the tokens in its target row's adjusts (what is known about single tokens).
    masses: Vec<u64>,
    adjusts: Vec<TokenAdjust>,
    /// For each row, the first adjust of each chunk, then the requested tokens; and the tokens of rows that are spread.
    words: Vec<u32>,
    pub(super) spread: Tables,
    logits_bytes: usize,
    /// Rows that are brought from the device, with their places in the logits part of the inputs.
    on_device: Vec<DeviceRow>,
    /// Bytes of the reports, and of the distributions that rows keep.
    told_bytes: usize,
}

impl Packer {
    /// A packer for kernels that cut rows into chunks of this many tokens.
    #[must_use]
    pub fn new(chunk: u32) -> Self {
        let (rows, drafts, masses, adjusts, words) = (vec![], vec![], vec![], vec![], vec![]);
        let (spread, on_device, logits_bytes, told_bytes) = (Tables::default(), vec![], 0, 0);
        Self { chunk, rows, drafts, masses, adjusts, words, spread, logits_bytes, on_device, told_bytes }
    }

    /// Forgets the rows.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.drafts.clear();
        self.masses.clear();
        self.adjusts.clear();
        self.words.clear();
        self.spread.clear();
        self.on_device.clear();
        self.logits_bytes = 0;
        self.told_bytes = 0;
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Adds a row that [has a kernel](super::ask::has_kernel).
    pub fn push(&mut self, asked: &Asked<'_>) {
        let logits = &asked.row.logits;
        let (first_adjust, only_listed) = self.push_adjusts(asked);
        let index_at = self.words.len();
        self.push_index(first_adjust, logits.vocab_size() as u32);
        let requested_at = self.words.len();
        let requested = asked.row.spec.logprobs.map_or(&[][..], |wanted| wanted.tokens);
        self.words.extend_from_slice(requested);
        let row = described(asked);
        let told = size_of::<ReportedToken>() * (row.top_n as usize + requested.len());
        let most_left = asked.most_left();
        self.rows.push(abi::RowJob {
            // Offsets count from the start of their part until the row is written.
            logits: self.logits_bytes as u64,
            adjusts: (first_adjust * size_of::<TokenAdjust>()) as u64,
            adjust_index: (index_at * size_of::<u32>()) as u64,
            requested: (requested_at * size_of::<u32>()) as u64,
            report: self.told_bytes as u64,
            drafts: (self.drafts.len() * size_of::<DraftRow>()) as u64,
            left: (self.told_bytes + told) as u64,
            adjust_count: (self.adjusts.len() - first_adjust) as u32,
            flags: row.flags | if only_listed { abi::ONLY_LISTED } else { 0 },
            ..row
        });
        if let Some(there) = DeviceRow::of(logits, self.logits_bytes) {
            there.add_to(&mut self.on_device);
        } else if let Some(there) = self.spread.push(logits, self.logits_bytes, &mut self.words) {
            there.add_to(&mut self.on_device);
        }
        self.logits_bytes += logits.byte_len().next_multiple_of(ALIGNMENT);
        self.told_bytes += told + most_left.map_or(0, |most| size_of::<Left>() + most * size_of::<ReportedToken>());
        asked.drafts().for_each(|(draft, by)| self.push_draft(draft, by, first_adjust));
    }

    /// Adds what is known about single tokens. Returns the index of the first entry, and whether only these tokens may
    /// be emitted.
    fn push_adjusts(&mut self, asked: &Asked<'_>) -> (usize, bool) {
        let vocab_size = asked.row.logits.vocab_size() as u32;
        let first_adjust = self.adjusts.len();
        let only_listed = merge(&asked.row.spec, &mut self.adjusts);
        if !only_listed {
            let tokens = asked.drafts().flat_map(|(draft, _)| listed(draft)).filter(|&token| token < vocab_size);
            know_too(&mut self.adjusts, first_adjust, tokens.collect());
        }
        (first_adjust, only_listed)
    }

    /// Adds the first adjust of each chunk, if there are any adjusts.
    fn push_index(&mut self, first_adjust: usize, vocab_size: u32) {
        let adjusts = &self.adjusts[first_adjust..];
        if !adjusts.is_empty() {
            let chunks = vocab_size.div_ceil(self.chunk);
            self.words.extend((0..=chunks).map(|c| adjusts.partition_point(|a| a.token < c * self.chunk) as u32));
        }
    }

    /// Adds a draft of the row that was pushed last.
    fn push_draft(&mut self, draft: &Proposed<'_>, by: Residual, first_adjust: usize) {
        let none = DraftRow { last_key: u64::MAX, of_target: by.target, of_draft: by.draft, ..DraftRow::default() };
        let row = row_of(draft);
        let format = |dtype| match dtype {
            Dtype::F32 => abi::ROW_F32,
            Dtype::F16 => abi::ROW_F16,
            Dtype::Bf16 => abi::ROW_BF16,
        };
        let placed = DraftRow {
            row: self.logits_bytes as u64,
            masses: (self.masses.len() * size_of::<u64>()) as u64,
            format: row.map_or(abi::NO_ROW, |row| format(row.dtype())),
            vocab_size: row.map_or(0, |row| row.vocab_size() as u32),
            ..none
        };
        self.drafts.push(match &draft.source {
            Source::List(_) => placed,
            Source::Sent(_) => DraftRow { format: placed.format | abi::SENT, ..placed },
            Source::Row(kept) => {
                let last_key = kept.last.map_or(u64::MAX, |last| keys::key(last.token, last.logit));
                DraftRow { last_key, need: kept.need, max: kept.max, scale: kept.scale, ..placed }
            }
        });
        self.masses.extend(self.adjusts[first_adjust..].iter().map(|adjust| draft.mass_of(adjust.token)));
        self.logits_bytes += row.map_or(0, |row| row.bytes().len().next_multiple_of(ALIGNMENT));
    }

    /// Bytes of the inputs.
    #[must_use]
    pub fn inputs_bytes(&self) -> usize {
        self.logits_at() + self.logits_bytes
    }

    /// Bytes of the outputs.
    #[must_use]
    pub fn outputs_bytes(&self) -> usize {
        self.reports_at() + self.told_bytes
    }

    /// The place in the inputs of the jobs that spread rows, and their number.
    #[must_use]
    pub fn spread(&self) -> (usize, u32) {
        (self.spread_at(), self.spread.rows() as u32)
    }

    /// The rows that are on the device, with their places in the inputs.
    #[must_use]
    pub fn device_rows(&self) -> Vec<DeviceRow> {
        self.on_device.iter().map(|row| DeviceRow { to: row.to + self.logits_at(), ..*row }).collect()
    }

    /// Writes the inputs, except for rows that are on the device. `asked` are the rows that were pushed.
    ///
    /// # Panics
    /// If `to` is shorter than [`Self::inputs_bytes`].
    pub fn write<'a>(&self, asked: impl Iterator<Item = &'a Asked<'a>>, to: &mut [u8]) {
        let (drafts_at, logits_at) = (self.drafts_at(), self.logits_at());
        let (rows, rest) = to[..self.inputs_bytes()].split_at_mut(drafts_at);
        let (known, logits) = rest.split_at_mut(logits_at - drafts_at);
        let mut put = |at: u64, row: &Logits<'_>| row.copy_to(&mut logits[at as usize..][..row.byte_len()]);
        let mut drafts = self.drafts.iter();
        for ((row, asked), place) in self.rows.iter().zip(asked).zip(rows.chunks_exact_mut(size_of::<abi::RowJob>())) {
            place.copy_from_slice(bytes_of(&self.placed(row)));
            if !asked.row.logits.is_on_device() {
                put(row.logits, &asked.row.logits);
            }
            for ((draft, _), placed) in asked.drafts().zip(drafts.by_ref()) {
                row_of(draft).into_iter().for_each(|row| put(placed.row, &row));
            }
        }
        self.write_known(known);
    }

    /// A row with its offsets in the whole inputs and outputs.
    fn placed(&self, row: &abi::RowJob) -> abi::RowJob {
        abi::RowJob {
            logits: row.logits + self.logits_at() as u64,
            adjusts: row.adjusts + self.adjusts_at() as u64,
            adjust_index: row.adjust_index + self.words_at() as u64,
            requested: row.requested + self.words_at() as u64,
            report: row.report + self.reports_at() as u64,
            left: row.left + self.reports_at() as u64,
            drafts: row.drafts + self.drafts_at() as u64,
            ..*row
        }
    }

    /// Writes the parts between the rows and the logits.
    fn write_known(&self, to: &mut [u8]) {
        let first = self.drafts_at();
        for (draft, place) in self.drafts.iter().zip(to.chunks_exact_mut(size_of::<DraftRow>())) {
            let row = draft.row + self.logits_at() as u64;
            let masses = draft.masses + self.masses_at() as u64;
            place.copy_from_slice(bytes_of(&DraftRow { row, masses, ..*draft }));
        }
        let mut put = |at: usize, bytes: &[u8]| to[at - first..][..bytes.len()].copy_from_slice(bytes);
        put(self.masses_at(), bytemuck::cast_slice(&self.masses));
        put(self.words_at(), bytemuck::cast_slice(&self.words));
        self.spread.write(self.logits_at(), self.words_at(), &mut to[self.spread_at() - first..]);
        let places = to[self.adjusts_at() - first..].chunks_exact_mut(size_of::<TokenAdjust>());
        for (adjust, place) in self.adjusts.iter().zip(places) {
            // Field by field, because the type belongs to the specification, which knows nothing of bytes.
            place[0..4].copy_from_slice(&adjust.token.to_le_bytes());
            place[4..8].copy_from_slice(&adjust.flags.to_le_bytes());
            place[8..12].copy_from_slice(&adjust.bias.to_le_bytes());
            place[12..16].copy_from_slice(&adjust.output_count.to_le_bytes());
        }
    }

    /// Parts of the inputs that [`Self::answer`] needs and the host does not have: rows on the device that are kept as
    /// distributions.
    #[must_use]
    pub fn lacking<'a>(&self, asked: impl Iterator<Item = &'a Asked<'a>>, outputs: &[u8]) -> Vec<Range<usize>> {
        if self.on_device.is_empty() {
            return Vec::new();
        }
        let lacks = |(row, asked): (usize, &Asked<'_>)| {
            asked.most_left().filter(|_| asked.row.logits.is_on_device())?;
            let written: Written =
                bytemuck::pod_read_unaligned(&outputs[row * size_of::<Written>()..][..size_of::<Written>()]);
            let left: Left = bytemuck::pod_read_unaligned(
                &outputs[self.reports_at() + self.rows[row].left as usize..][..size_of::<Left>()],
            );
            let first = self.logits_at() + self.rows[row].logits as usize;
            let is_kept = written.status == abi::OK && left.listed == abi::UNLISTED;
            is_kept.then(|| first..first + asked.row.logits.byte_len())
        };
        asked.enumerate().filter_map(lacks).collect()
    }

    /// Reads what the kernel wrote about the row that was pushed as number `row`; `asked` is that row. `inputs` are the
    /// bytes that were written for the launch.
    ///
    /// # Panics
    /// If `outputs` is shorter than [`Self::outputs_bytes`].
    #[must_use]
    pub fn answer(&self, row: usize, asked: &Asked<'_>, inputs: &[u8], outputs: &[u8]) -> Answer {
        let at = row * size_of::<Written>();
        let mut written: Written = bytemuck::pod_read_unaligned(&outputs[at..at + size_of::<Written>()]);
        let job = &self.rows[row];
        // More tokens than there is room for, or an invalid token, means that the kernel contradicted itself.
        if written.top_count > job.top_n || written.token >= job.vocab_size {
            written.status = abi::BROKEN;
        }
        let count = if written.status == abi::OK { (job.top_n + job.requested_count) as usize } else { 0 };
        let reported = tokens(&outputs[self.reports_at() + job.report as usize..], count);
        let keeps = written.status == abi::OK && matches!(asked.row.spec.action, Action::Propose { .. });
        let kept = || {
            let told = &outputs[self.reports_at() + job.left as usize..];
            let uploaded = &inputs[self.logits_at() + job.logits as usize..][..asked.row.logits.byte_len()];
            match asked.most_left() {
                Some(_) => keep::kept(asked, &written, told, uploaded),
                None => Some(keep::one(written.first_key)),
            }
        };
        Answer { written, reported, kept: if keeps { kept() } else { None } }
    }

    fn drafts_at(&self) -> usize {
        self.rows.len() * size_of::<abi::RowJob>()
    }

    fn masses_at(&self) -> usize {
        self.drafts_at() + self.drafts.len() * size_of::<DraftRow>()
    }

    fn adjusts_at(&self) -> usize {
        self.masses_at() + self.masses.len() * size_of::<u64>()
    }

    fn spread_at(&self) -> usize {
        self.adjusts_at() + self.adjusts.len() * size_of::<TokenAdjust>()
    }

    fn words_at(&self) -> usize {
        self.spread_at() + self.spread.bytes()
    }

    fn logits_at(&self) -> usize {
        (self.words_at() + self.words.len() * size_of::<u32>()).next_multiple_of(ALIGNMENT)
    }

    fn reports_at(&self) -> usize {
        self.rows.len() * size_of::<Written>()
    }
}

/// Reads so many tokens.
pub(super) fn tokens(from: &[u8], count: usize) -> Vec<ReportedToken> {
    let size = size_of::<ReportedToken>();
    from[..count * size].chunks_exact(size).map(bytemuck::pod_read_unaligned).collect()
}

/// A row in the kernels' form, without its offsets.
fn described(asked: &Asked<'_>) -> abi::RowJob {
    let spec = &asked.row.spec;
    let (report, top_n, requested) = reporting(spec);
    let (uniform, token, score) = drawn(spec.action);
    let (last_key, max, need, weighs) = weighing(asked);
    let most_left = asked.most_left();
    let keep = if most_left.is_some() { abi::KEEP } else { 0 };
    let greedy = if spec.filters.temperature == 0.0 { abi::GREEDY } else { 0 };
    let penalties = &spec.penalties;
    let first = if penalties.subtract_first { abi::SUBTRACT_FIRST } else { 0 };
    abi::RowJob {
        uniform,
        min_p_need: need,
        top_p_fraction: mass::fraction(spec.filters.top_p.min(1.0)),
        last_key,
        vocab_size: asked.row.logits.vocab_size() as u32,
        flags: greedy | score | report | weighs | keep | first,
        top_k: spec.filters.top_k,
        scale: scale(spec),
        raw_scale: mass::scale(1.0),
        repetition: penalties.repetition,
        frequency: penalties.frequency,
        presence: penalties.presence,
        encoder: penalties.encoder,
        length: penalties.length,
        place: penalties.decay.place.into(),
        last_n: penalties.decay.last_n.into(),
        decay_n: penalties.decay.decay_n.into(),
        token,
        top_n,
        requested_count: requested as u32,
        max,
        draft_count: asked.drafts().len() as u32,
        most_left: most_left.unwrap_or(0) as u32,
        ..abi::RowJob::default()
    }
}

/// What is reported about tokens: the flag, how many of the first tokens, and how many requested ones.
fn reporting(spec: &RowSpec<'_>) -> (u32, u32, usize) {
    match spec.logprobs {
        None => (0, 0, 0),
        Some(wanted) if wanted.mode == LogprobsMode::Raw => (abi::REPORT_RAW, wanted.top_n, wanted.tokens.len()),
        Some(wanted) => (abi::REPORT_PROCESSED, wanted.top_n, wanted.tokens.len()),
    }
}

/// The number to draw with or the token to score, and the flag.
fn drawn(action: Action) -> (u64, u32, u32) {
    match action {
        Action::Draw { uniform } | Action::Propose { uniform } => (uniform, 0, 0),
        Action::Score { token } => (0, token, abi::SCORE),
    }
}

/// What is weighed: the last key, the logit of mass one, the least mass that counts, and the flag.
fn weighing(asked: &Asked<'_>) -> (u64, f32, u64, u32) {
    match &asked.task {
        RowTask::Row => (0, 0.0, min_p_need(&asked.row.spec), 0),
        RowTask::Unranked => (0, 0.0, min_p_need(&asked.row.spec), abi::UNRANKED),
        RowTask::Weigh(weigh) => {
            let by = match weigh.by {
                WeighBy::Entropy => abi::ENTROPY,
                WeighBy::Drafted(_) => abi::DRAFTED,
                WeighBy::Beyond(_) => 0,
            };
            (weigh.last_key, weigh.max, weigh.need, by)
        }
    }
}

/// The least mass that min-p keeps.
pub(super) fn min_p_need(spec: &RowSpec<'_>) -> u64 {
    if spec.filters.min_p > 0.0 { mass::min_p_need(spec.filters.min_p) } else { 0 }
}

/// The exponent scale of the distribution that a row is drawn from. A greedy row has one token, with mass one at any
/// scale.
pub(super) fn scale(spec: &RowSpec<'_>) -> f32 {
    if spec.filters.temperature == 0.0 { 1.0 } else { mass::scale(spec.filters.temperature) }
}
