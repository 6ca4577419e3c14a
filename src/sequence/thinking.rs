//! A budget for thinking: `thinking_budget` (llama.cpp `common/reasoning-budget.cpp`, vLLM and TensorRT-LLM
//! `thinking_token_budget`).
//!
//! Thinking begins when prompt or output end with `start_token_ids`. It ends when they end with `end_token_ids` or one
//! of `other_ends` (llama.cpp's `reasoning_budget_end_tags`: a model may call a tool without saying that it has thought
//! enough). Each stretch of thinking has the whole budget. Every token after its start is spent, including those of the
//! end and those in the prompt, so that a text that is continued in the middle of its thinking has as much budget left
//! as before. A start inside a stretch does not count, as in llama.cpp. In vLLM and TensorRT-LLM it would begin the
//! count again, and a model that repeats it would think without end.
//!
//! Once the budget is spent, the tokens of `forced()` are emitted one by one, and the stretch is over. If the text
//! already ends with the first of these tokens, they are not emitted again (vLLM; llama.cpp starts with the first).
//! Tokens of the thinking's start do not count for this. A start or end among forced tokens is ignored. If another
//! token stands in the place of a forced one (`forced_first_token`, an output that was begun elsewhere), the same rule
//! applies again after it, unless it ends the thinking.
//!
//! If a text's grammar has a `start_position`, the text no longer thinks from there on, however it got there: its
//! engine saw the end.
//!
//! llama.cpp waits for the last bytes of a character before it forces tokens; here a character may be cut.

use super::text::TextView;
use crate::params::steering::ThinkingBudget;

/// Where a text is in its thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Thinking {
    /// Tokens spent in this stretch, or in the last one.
    spent: u32,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Outside,
    Inside,
    /// This one of the forced tokens comes next. The text ends with those before it, and with no longer run of the
    /// first forced tokens.
    Forced(u32),
}

impl Thinking {
    /// The state after `prompt` and `output`. A stretch that is still open after `over_at` tokens of output ends there,
    /// unless that is 0.
    pub(super) fn after(params: &ThinkingBudget, prompt: &[u32], output: &[u32], over_at: u64) -> Self {
        let mut thinking = Self::default();
        let text = TextView::new(prompt, output);
        // In a prompt nothing is forced; forcing starts behind it.
        for at in 1..=prompt.len() {
            thinking.step(params, &text, at);
        }
        thinking.stop(params, &text, prompt.len());
        for at in prompt.len() + 1..=text.len() {
            thinking.emit(params, &text, at, (at - prompt.len()) as u64 == over_at);
        }
        thinking
    }

    /// Takes in the last token of `text`, which was emitted. `is_over` ends any stretch there.
    pub(super) fn append(&mut self, params: &ThinkingBudget, text: &TextView<'_>, is_over: bool) {
        self.emit(params, text, text.len(), is_over);
    }

    /// Takes in the emitted token before this position.
    fn emit(&mut self, params: &ThinkingBudget, text: &TextView<'_>, at: usize, is_over: bool) {
        self.step(params, text, at);
        self.stop(params, text, at);
        if is_over {
            self.phase = Phase::Outside;
        }
    }

    /// The token that has to come next.
    pub(super) fn forced(&self, params: &ThinkingBudget) -> Option<u32> {
        match self.phase {
            Phase::Forced(at) => params.forced().get(at as usize).copied(),
            Phase::Outside | Phase::Inside => None,
        }
    }

    /// Whether one of the next `count` tokens may be forced.
    pub(super) fn may_force_within(&self, params: &ThinkingBudget, count: usize) -> bool {
        let (count, budget) = (count as u64, u64::from(params.budget));
        match self.phase {
            Phase::Forced(_) => count > 0,
            Phase::Inside => u64::from(self.spent) + count > budget,
            // A start has to come first. The text may already have all its tokens but one.
            Phase::Outside => count > budget + 1,
        }
    }

    /// Whether a stretch has begun and is not over; its end is part of it.
    pub(super) fn is_inside(&self) -> bool {
        self.phase != Phase::Outside
    }

    /// How many of the last tokens are needed.
    pub(super) fn reach(params: &ThinkingBudget) -> usize {
        let ends = params.ends().map(Vec::len).max().unwrap_or(0);
        params.start_token_ids.len().max(ends).max(params.forced().len())
    }

    /// Takes in the token before this position.
    fn step(&mut self, params: &ThinkingBudget, text: &TextView<'_>, at: usize) {
        if self.phase != Phase::Outside {
            self.spent = self.spent.saturating_add(1);
        }
        self.phase = match self.phase {
            Phase::Outside if text.ends_with(at, &params.start_token_ids) => {
                self.spent = 0;
                Phase::Inside
            }
            Phase::Outside => Phase::Outside,
            Phase::Forced(next) if text.get(at - 1) == params.forced().get(next as usize).copied() => {
                if next as usize + 1 == params.forced().len() { Phase::Outside } else { Phase::Forced(next + 1) }
            }
            _ if params.ends().any(|end| text.ends_with(at, end)) => Phase::Outside,
            // Another token came. The text cannot now end with more of the forced tokens than before.
            Phase::Forced(next) => Phase::Forced(self.said(params, text, at, next)),
            Phase::Inside => Phase::Inside,
        };
    }

    /// Starts forcing if the stretch has spent its whole budget.
    fn stop(&mut self, params: &ThinkingBudget, text: &TextView<'_>, at: usize) {
        if self.phase == Phase::Inside && self.spent >= params.budget {
            self.phase = Phase::Forced(self.said(params, text, at, self.spent));
        }
    }

    /// How many of the first forced tokens, at most `most` and never all, the text before this position ends with.
    fn said(&self, params: &ThinkingBudget, text: &TextView<'_>, at: usize, most: u32) -> u32 {
        let most = most.min(params.forced().len() as u32 - 1);
        (1..=most).rev().find(|&count| text.ends_with(at, &params.forced()[..count as usize])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn params(budget: u32, forced: &[u32]) -> ThinkingBudget {
        ThinkingBudget {
            start_token_ids: vec![1, 2],
            end_token_ids: vec![3],
            budget,
            forced_token_ids: forced.to_vec(),
            ..Default::default()
        }
    }

    /// The text that results from these wishes, one for each position.
    fn emitted(params: &ThinkingBudget, prompt: &[u32], wishes: &[u32]) -> Vec<u32> {
        emitted_up_to(0, params, prompt, wishes)
    }

    /// The same for a text whose thinking is over after `over_at` tokens.
    fn emitted_up_to(over_at: u64, params: &ThinkingBudget, prompt: &[u32], wishes: &[u32]) -> Vec<u32> {
        let after = |output: &[u32]| Thinking::after(params, prompt, output, over_at);
        let mut thinking = after(&[]);
        let mut text = prompt.to_vec();
        for &wish in wishes {
            text.push(thinking.forced(params).unwrap_or(wish));
            let output = &text[prompt.len()..];
            thinking.append(params, &TextView::new(&text, &[]), output.len() as u64 == over_at);
            assert_eq!(thinking, after(output), "opened again after {output:?}");
        }
        text.split_off(prompt.len())
    }

    /// At a position where the engine saw the end, within a budget or among the forced tokens.
    #[test]
    fn it_is_over_where_a_grammar_begins_at_a_position() {
        let budget = params(2, &[5, 4, 3]);
        let wishes = [7, 8, 9, 9, 9, 9];
        for (over_at, expected) in [
            (0, [7, 8, 5, 4, 3, 9]),
            (1, [7, 8, 9, 9, 9, 9]),
            (2, [7, 8, 9, 9, 9, 9]),
            (3, [7, 8, 5, 9, 9, 9]),
            (4, [7, 8, 5, 4, 9, 9]),
            (5, [7, 8, 5, 4, 3, 9]),
            (6, [7, 8, 5, 4, 3, 9]),
        ] {
            assert_eq!(emitted_up_to(over_at, &budget, &[1, 2], &wishes), expected, "{over_at}");
        }
        // Thinking that begins after the position has its own budget.
        assert_eq!(emitted_up_to(1, &budget, &[1, 2], &[7, 1, 2, 8, 8, 8]), [7, 1, 2, 8, 8, 5]);
    }

    /// Other tokens than the forced ones do not end thinking.
    #[test]
    fn forced_tokens_begin_again_where_another_came_first() {
        let next = |forced: &[u32], prompt: &[u32], output: &[u32]| {
            let params = params(1, forced);
            Thinking::after(&params, prompt, output, 0).forced(&params)
        };
        // Inside thinking, with the budget spent: 5, 4 and 3 are due.
        let forced = [5, 4, 3];
        assert_eq!(next(&forced, &[1, 2], &[8]), Some(5));
        assert_eq!(next(&forced, &[1, 2], &[8, 9]), Some(5));
        assert_eq!(next(&forced, &[1, 2], &[8, 9, 9, 9]), Some(5));
        assert_eq!(next(&forced, &[1, 2], &[8, 5]), Some(4));
        assert_eq!(next(&forced, &[1, 2], &[8, 5, 9]), Some(5));
        assert_eq!(next(&forced, &[1, 2], &[8, 5, 9, 5, 4]), Some(3));
        assert_eq!(next(&forced, &[1, 2], &[8, 5, 9, 5, 4, 3]), None);
        // The end itself, too early.
        assert_eq!(next(&forced, &[1, 2], &[8, 3]), None);
        assert_eq!(next(&forced, &[1, 2], &[8, 5, 3]), None);
    }

    /// As in vLLM: from the last start and the last end in the whole text, wherever they are.
    fn by_definition(params: &ThinkingBudget, text: &[u32]) -> Option<u32> {
        let (start, end) = (&params.start_token_ids, &params.end_token_ids);
        let last = |tokens: &[u32]| text.windows(tokens.len()).rposition(|window| window == tokens);
        let begun = last(start).filter(|begun| last(end).is_none_or(|ended| ended < *begun))?;
        let spent = text.len() - begun - start.len();
        let said = (1..end.len()).rev().find(|&count| text.ends_with(&end[..count])).unwrap_or(0);
        (spent >= params.budget as usize).then(|| end[said])
    }

    /// A tool is called in the middle of a thought, with one token or with two.
    #[test]
    fn other_ends_end_it_too() {
        let budget = |other_ends: &[&[u32]]| ThinkingBudget {
            other_ends: other_ends.iter().map(|end| end.to_vec()).collect(),
            ..params(3, &[5, 3])
        };
        let calls = budget(&[&[6], &[7, 8]]);
        assert_eq!(Thinking::reach(&budget(&[&[6; 9], &[7]])), 9);
        let same = |prompt: &[u32], wishes: &[u32]| assert_eq!(emitted(&calls, prompt, wishes), wishes, "{prompt:?}");
        same(&[], &[1, 2, 9, 6, 9, 9, 9, 9, 9]);
        same(&[1, 2, 9], &[7, 8, 9, 9, 9, 9, 9]);
        same(&[1, 2, 6], &[9, 9, 9, 9, 9, 9]);
        // Half of such an end does not count, nor does one that begins before the start.
        assert_eq!(emitted(&calls, &[], &[1, 2, 9, 8, 9, 9, 9, 4]), [1, 2, 9, 8, 9, 5, 3, 4]);
        assert_eq!(emitted(&calls, &[7], &[1, 2, 8, 9, 9, 9, 9, 4]), [1, 2, 8, 9, 9, 5, 3, 4]);
        // Each stretch has the whole budget again.
        assert_eq!(emitted(&calls, &[], &[1, 2, 9, 6, 1, 2, 9, 9, 9, 0, 0, 4]), [1, 2, 9, 6, 1, 2, 9, 9, 9, 5, 3, 4]);
        // After a forced token that was not taken, it ends the stretch as well.
        let forced = Thinking::after(&calls, &[1, 2], &[9, 9, 9, 6], 0).forced(&calls);
        assert_eq!(forced, None);
    }

    #[test]
    fn as_many_tokens_are_needed_as_its_longest_sequence_has() {
        let budget = |start: usize, end: usize, forced: usize, other: usize| ThinkingBudget {
            start_token_ids: vec![1; start],
            end_token_ids: vec![2; end],
            budget: 3,
            forced_token_ids: vec![3; forced],
            other_ends: vec![vec![4; other]],
            ..Default::default()
        };
        for (start, end, forced, other) in [(9, 1, 2, 3), (1, 9, 2, 3), (1, 2, 9, 3), (1, 2, 3, 9)] {
            assert_eq!(Thinking::reach(&budget(start, end, forced, other)), 9);
        }
    }

    proptest! {
        #[test]
        fn it_is_as_vllm_defines_it(
            budget in 0u32..6,
            end in prop_oneof![Just(vec![3]), Just(vec![3, 4]), Just(vec![3, 3, 4])],
            prompt in 0usize..12,
            wishes in prop::collection::vec((0u32..5, prop::bool::weighted(0.8)), 0..80),
        ) {
            let params = ThinkingBudget { end_token_ids: end, ..params(budget, &[]) };
            let (mut text, mut thinking) = (Vec::new(), Thinking::default());
            for (at, (wish, obeys)) in wishes.into_iter().enumerate() {
                if at <= prompt {
                    thinking = Thinking::after(&params, &text, &[], 0);
                }
                let forced = thinking.forced(&params);
                prop_assert_eq!(forced, by_definition(&params, &text), "{:?}", text);
                text.push(forced.filter(|_| obeys && at >= prompt).unwrap_or(wish));
                if thinking.phase != Phase::Outside && text.ends_with(&params.start_token_ids) {
                    // vLLM would count from this start on.
                    text.pop();
                    text.push(0);
                }
                thinking.append(&params, &TextView::new(&text, &[]), false);
            }
        }
    }

    #[test]
    fn by_hand() {
        for (budget, forced, prompt, wishes, expected) in [
            (2, &[][..], &[][..], &[1, 2, 7, 8, 9, 9][..], &[1, 2, 7, 8, 3, 9][..]),
            (2, &[5, 3], &[], &[1, 2, 7, 8, 9, 9, 9], &[1, 2, 7, 8, 5, 3, 9]),
            // Over in time.
            (3, &[5, 3], &[], &[1, 2, 7, 3, 9, 9], &[1, 2, 7, 3, 9, 9]),
            // Each stretch has the whole budget, whether the previous one ended by itself or was forced to.
            (3, &[5, 3], &[], &[1, 2, 7, 3, 9, 1, 2, 7, 7, 7, 7, 7, 7], &[1, 2, 7, 3, 9, 1, 2, 7, 7, 7, 5, 3, 7]),
            (1, &[], &[], &[1, 2, 7, 7, 1, 2, 7, 7, 7], &[1, 2, 7, 3, 1, 2, 7, 3, 7]),
            (3, &[], &[], &[1, 2, 7, 7, 3, 8, 1, 2, 7, 7, 3, 8], &[1, 2, 7, 7, 3, 8, 1, 2, 7, 7, 3, 8]),
            // A start inside a stretch does not count.
            (3, &[], &[], &[1, 2, 7, 1, 2, 7, 7], &[1, 2, 7, 1, 2, 3, 7]),
            // Tokens in the prompt count towards the budget. A stretch that ended in the prompt does not.
            (1, &[], &[1, 2, 7, 7], &[8, 8, 8], &[3, 8, 8]),
            (3, &[], &[1, 2, 7, 7], &[8, 8, 8], &[8, 3, 8]),
            (2, &[], &[1, 2, 7, 7, 3, 1, 2, 7], &[8, 8, 8], &[8, 3, 8]),
            (0, &[5, 3], &[4, 1, 2], &[8, 8, 8], &[5, 3, 8]),
            (0, &[], &[1, 2, 3], &[8, 1, 2, 9, 9], &[8, 1, 2, 3, 9]),
            // Forced tokens that the stretch already ends with are not repeated; those that are part of its start are.
            (2, &[5, 4, 3], &[], &[1, 2, 7, 5, 9, 9, 9], &[1, 2, 7, 5, 4, 3, 9]),
            (2, &[5, 4, 3], &[1, 2, 7, 5, 4], &[9, 9, 9], &[3, 9, 9]),
            (3, &[5, 5, 4, 3], &[], &[1, 2, 5, 5, 5, 9, 9, 9], &[1, 2, 5, 5, 5, 4, 3, 9]),
            (0, &[2, 3], &[], &[1, 2, 9, 9, 9], &[1, 2, 2, 3, 9]),
            // A start among forced tokens does not count.
            (0, &[3, 1, 2], &[1, 2], &[8, 8, 8, 8, 8], &[3, 1, 2, 8, 8]),
        ] {
            assert_eq!(emitted(&params(budget, forced), prompt, wishes), expected, "{budget} {prompt:?} {wishes:?}");
        }
    }
}
