//! What a watermark depends on at a position: the tokens before it, as one number or a few. The rules themselves are in
//! [`sampling::watermark`](crate::sampling::watermark).
//!
//! KGW and the race (Gumbel) use prompt and output, and do not mark where the text is shorter than the context. SynthID
//! uses the output alone, as in Transformers, with tokens 0 before it. SynthID and the race do not mark where the same
//! context stood before, at one of the last `context_history_size` positions of the output.

use super::memory::PositionState;
use super::text::TextView;
use crate::params::SamplingParams;
use crate::params::watermark::{GumbelParams, SynthidParams, Watermark};
use crate::sampling::chain::Chain;
use crate::sampling::row::RowSpec;
use crate::sampling::watermark::greenlist::{Greenlist, Seeds};
use crate::sampling::watermark::race::Race;
use crate::sampling::watermark::tournament::{Table, Tournament};
use crate::sampling::watermark::{RowWatermark, context, tournament};
use std::sync::Arc;

/// What the watermark of the next token depends on, derived from the tokens before it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) enum MarkContext {
    /// The next token is not marked.
    #[default]
    Unmarked,
    /// The seeds of a greenlist (KGW).
    Seeds(Seeds),
    /// A hash of the context.
    Context(u64),
}

/// The part of the mark that all rows of a text have.
pub(super) fn everywhere(mark: &Watermark) -> Option<RowWatermark> {
    matches!(mark, Watermark::Gumbel(_)).then_some(RowWatermark::Race(None))
}

/// The table that a SynthID mark takes its bits from.
pub(super) fn table(mark: &Watermark) -> Option<Arc<Table>> {
    if let Watermark::Synthid(synthid) = mark { Some(Table::of(synthid)) } else { None }
}

/// Adds the mark of the row's position.
pub(super) fn marked<'a>(
    params: &'a SamplingParams,
    table: Option<&'a Table>,
    now: Option<&PositionState>,
    row: RowSpec<'a>,
) -> RowSpec<'a> {
    let (Some(mark), Some(now)) = (params.watermark(), now) else { return row };
    match (mark, now.mark()) {
        (Watermark::Kgw(kgw), MarkContext::Seeds(seeds)) => {
            RowSpec { mark: Some(RowWatermark::Green(Greenlist::new(kgw, seeds))), ..row }
        }
        (Watermark::Gumbel(gumbel), MarkContext::Context(context)) => {
            RowSpec { mark: Some(RowWatermark::Race(Some(Race { key: gumbel.key, context }))), ..row }
        }
        (Watermark::Synthid(synthid), MarkContext::Context(context)) => {
            let tournament = table.map(|table| Tournament { context, keys: &synthid.keys, table });
            RowSpec { chain: row.chain.map(|chain| Chain { tournament, ..chain }), ..row }
        }
        _ => row,
    }
}

/// The place of the next token: behind `text`, whose last `output` tokens were emitted.
struct Next<'a> {
    text: &'a TextView<'a>,
    output: u64,
}

impl Next<'_> {
    /// The token at a position of the output; 0 before it.
    fn emitted(&self, at: i64) -> u32 {
        let back = self.output as i64 - at;
        let place = self.text.len() as i64 - back;
        if at < 0 { 0 } else { usize::try_from(place).ok().and_then(|place| self.text.get(place)).unwrap_or(0) }
    }

    /// Whether the `width` tokens before this position also stood before one of the last `history` positions, not
    /// counting those before `first`.
    fn is_repeated(&self, width: usize, history: u32, first: i64, token: impl Fn(i64) -> u32) -> bool {
        let here = self.output as i64;
        let from = (here - i64::from(history)).max(first);
        if from >= here {
            return false;
        }
        // Collected once, because looking up single tokens of a text is slow.
        let tokens: Vec<u32> = (from - width as i64..here).map(token).collect();
        let last = &tokens[tokens.len() - width..];
        tokens.windows(width).take((here - from) as usize).any(|before| before == last)
    }
}

/// How many tokens the mark looks back at.
pub(super) fn reach(mark: &Watermark) -> usize {
    let (width, history) = match mark {
        Watermark::Kgw(kgw) => (kgw.context_width, 0),
        Watermark::Synthid(synthid) => (synthid.ngram_len - 1, synthid.context_history_size),
        Watermark::Gumbel(gumbel) => (gumbel.context_width, gumbel.context_history_size),
    };
    width as usize + history as usize
}

/// What the mark depends on after `text`. Its last `output` tokens were emitted, or all of them if it is shorter.
pub(super) fn context_at(mark: &Watermark, text: &TextView<'_>, output: u64) -> MarkContext {
    let place = Next { text, output };
    match mark {
        Watermark::Kgw(kgw) => match kgw.context_width as usize {
            width if width > text.len() => MarkContext::Unmarked,
            width => MarkContext::Seeds(Seeds::new(kgw, text.last(width))),
        },
        Watermark::Synthid(synthid) => of_synthid(synthid, &place),
        Watermark::Gumbel(gumbel) => of_gumbel(gumbel, &place),
    }
}

fn of_synthid(params: &SynthidParams, place: &Next<'_>) -> MarkContext {
    let width = params.ngram_len as i64 - 1;
    let (here, first) = (place.output as i64, if params.skip_first_ngram_calls { width } else { 0 });
    let token = |at| place.emitted(at);
    if here < first || place.is_repeated(width as usize, params.context_history_size, first, token) {
        return MarkContext::Unmarked;
    }
    MarkContext::Context(tournament::context((here - width..here).map(token)))
}

fn of_gumbel(params: &GumbelParams, place: &Next<'_>) -> MarkContext {
    let (width, text) = (params.context_width as usize, place.text);
    if width > text.len() {
        return MarkContext::Unmarked;
    }
    // The prompt's tokens have negative positions.
    let before = text.len() as i64 - place.output as i64;
    let token = |at: i64| usize::try_from(before + at).ok().and_then(|at| text.get(at)).unwrap_or(u32::MAX);
    if place.is_repeated(width, params.context_history_size, 0, token) {
        return MarkContext::Unmarked;
    }
    MarkContext::Context(context(params.key, text.last(width)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::watermark::KgwParams;

    fn all(mark: &Watermark, prompt: &[u32], output: &[u32]) -> Vec<MarkContext> {
        let whole = [prompt, output].concat();
        let at = |n: usize| {
            let text = &whole[..prompt.len() + n];
            // As many tokens as are kept, cut at any place.
            let kept = &text[text.len().saturating_sub(reach(mark))..];
            let cuts = (0..=kept.len())
                .map(|cut| super::context_at(mark, &TextView::new(&kept[..cut], &kept[cut..]), n as u64));
            let all: Vec<MarkContext> = cuts.collect();
            assert!(all.iter().all(|at| *at == all[0]), "{n}");
            assert_eq!(
                all[0],
                super::context_at(mark, &TextView::new(text, &[]), n as u64),
                "what is not kept does not matter: {n}"
            );
            all[0]
        };
        (0..=output.len()).map(at).collect()
    }

    fn marked(all: &[MarkContext]) -> Vec<bool> {
        all.iter().map(|at| *at != MarkContext::Unmarked).collect()
    }

    #[test]
    fn greenlists_need_a_whole_context() {
        let params = KgwParams { context_width: 2, ..KgwParams::default() };
        let mark = Watermark::Kgw(params.clone());
        let found = all(&mark, &[9], &[1, 2, 1, 2]);
        assert_eq!(marked(&found), [false, true, true, true, true]);
        assert_eq!(found[2], MarkContext::Seeds(Seeds::new(&params, [1, 2])));
        assert_eq!(found[2], found[4]);
    }

    #[test]
    fn synthid_sees_the_output_behind_zeros() {
        let params = SynthidParams { ngram_len: 3, context_history_size: 3, ..SynthidParams::new(vec![1]) };
        let mark = Watermark::Synthid(params.clone());
        // Contexts: 00, 04, 45, 54, 45 (seen two positions before), 54 (seen), 45, ...
        let found = all(&mark, &[7, 7], &[4, 5, 4, 5, 4]);
        assert_eq!(marked(&found), [true, true, true, true, false, false]);
        let hash = |tokens: [u32; 2]| MarkContext::Context(tournament::context(tokens));
        assert_eq!(found[..4], [hash([0, 0]), hash([0, 4]), hash([4, 5]), hash([5, 4])]);
        // Token 0 produces the context that existed before the first token.
        assert_eq!(marked(&all(&mark, &[], &[0, 3, 3, 3, 3, 3])), [true, false, true, true, false, false, false]);
        // With a shorter memory the context counts as new again.
        let short = Watermark::Synthid(SynthidParams { context_history_size: 1, ..params.clone() });
        assert_eq!(marked(&all(&short, &[], &[4, 5, 4, 5, 4])), [true; 6]);
        let skipping = Watermark::Synthid(SynthidParams { skip_first_ngram_calls: true, ..params });
        assert_eq!(marked(&all(&skipping, &[], &[0, 0, 0, 5])), [false, false, true, false, true]);
    }

    /// The context of token 5 occurs again three positions later.
    #[test]
    fn a_context_is_remembered_for_as_many_positions_as_it_says() {
        for (history, is_marked) in [(2, true), (3, false), (4, false)] {
            let synthid = SynthidParams { ngram_len: 2, context_history_size: history, ..SynthidParams::new(vec![1]) };
            let gumbel = GumbelParams { context_width: 1, context_history_size: history, ..GumbelParams::new(3) };
            for mark in [Watermark::Synthid(synthid), Watermark::Gumbel(gumbel)] {
                let found = marked(&all(&mark, &[8], &[5, 6, 7, 5]));
                assert_eq!(found, [true, true, true, true, is_marked], "{history}: {mark:?}");
            }
        }
    }

    #[test]
    fn a_race_sees_the_prompt_but_marks_a_context_once() {
        let params = GumbelParams { context_width: 2, context_history_size: 8, ..GumbelParams::new(3) };
        let mark = Watermark::Gumbel(params);
        // Contexts: 1; 12; 23 and so on. The context of the prompt alone, 1 2 before token 3, is new to the output.
        assert_eq!(marked(&all(&mark, &[1], &[2, 3, 1, 2, 3])), [false, true, true, true, false, false]);
        let found = all(&mark, &[1, 2], &[3]);
        assert_eq!(found[0], MarkContext::Context(context(3, [1, 2])));
        let never = Watermark::Gumbel(GumbelParams { context_history_size: 0, context_width: 1, key: 3 });
        assert_eq!(marked(&all(&never, &[5], &[5, 5])), [true; 3]);
    }
}
