//! A budget for thinking: `thinking_budget` (llama.cpp `common/reasoning-budget.cpp`, vLLM `thinking_token_budget`).
//!
//! Thinking begins when prompt or output end with `start_token_ids`, and ends when they end with `end_token_ids`. Each
//! output token in between is spent, those of the end too, and so are those of later stretches: the budget is for the
//! whole output. Once it is spent while the text thinks, `forced()` is emitted, token by token, and
//! thinking is over. With nothing left, thinking that begins again is ended at once. A start or end among forced tokens is
//! not one. Where another token stands in the place of a forced one (`forced_first_token`, an output that was begun elsewhere),
//! they begin again behind it, unless it ends the thinking.
//!
//! llama.cpp waits for the last bytes of a character before it forces; here it may be cut.

use super::text::Text;
use crate::params::steering::ThinkingBudget;

/// Where a text is in its thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Thinking {
    /// Output tokens spent on it.
    spent: u32,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Outside,
    Inside,
    /// This one of the forced tokens comes next.
    Forced(u32),
}

impl Thinking {
    /// After `prompt` and `output`.
    pub(super) fn after(params: &ThinkingBudget, prompt: &[u32], output: &[u32]) -> Self {
        let mut thinking = Self::default();
        let text = Text::new(prompt, output);
        for at in 1..=prompt.len() {
            thinking.step(params, &text, at, false);
        }
        thinking.stop(params);
        for at in prompt.len() + 1..=text.len() {
            thinking.step(params, &text, at, true);
            thinking.stop(params);
        }
        thinking
    }

    /// Takes in the last token of `text`, which was emitted.
    pub(super) fn append(&mut self, params: &ThinkingBudget, text: &Text<'_>) {
        self.step(params, text, text.len(), true);
        self.stop(params);
    }

    /// The token that has to come next.
    pub(super) fn forced(&self, params: &ThinkingBudget) -> Option<u32> {
        match self.phase {
            Phase::Forced(at) => params.forced().get(at as usize).copied(),
            Phase::Outside | Phase::Inside => None,
        }
    }

    /// Takes in the token before this position.
    fn step(&mut self, params: &ThinkingBudget, text: &Text<'_>, at: usize, emitted: bool) {
        if self.phase == Phase::Inside && emitted {
            self.spent = self.spent.saturating_add(1);
        }
        self.phase = match self.phase {
            Phase::Outside if text.ends_with(at, &params.start_token_ids) => Phase::Inside,
            Phase::Inside if text.ends_with(at, &params.end_token_ids) => Phase::Outside,
            Phase::Forced(next) if !text.ends_with(at, &params.forced()[next as usize..=next as usize]) => {
                // Another rule came first, or the text was begun elsewhere: it has to be said from the start.
                if text.ends_with(at, &params.end_token_ids) { Phase::Outside } else { Phase::Inside }
            }
            Phase::Forced(last) if last as usize + 1 == params.forced().len() => Phase::Outside,
            Phase::Forced(last) => Phase::Forced(last + 1),
            phase => phase,
        };
    }

    /// Stops a text that has spent all.
    fn stop(&mut self, params: &ThinkingBudget) {
        if self.phase == Phase::Inside && self.spent >= params.budget {
            self.phase = Phase::Forced(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(budget: u32, forced: &[u32]) -> ThinkingBudget {
        ThinkingBudget {
            start_token_ids: vec![1, 2],
            end_token_ids: vec![3],
            budget,
            forced_token_ids: forced.to_vec(),
        }
    }

    /// What a text becomes that wants to go on like this, one wish per position.
    fn emitted(params: &ThinkingBudget, prompt: &[u32], wishes: &[u32]) -> Vec<u32> {
        let mut thinking = Thinking::after(params, prompt, &[]);
        let mut text = prompt.to_vec();
        for &wish in wishes {
            text.push(thinking.forced(params).unwrap_or(wish));
            thinking.append(params, &Text::new(&text, &[]));
            let output = &text[prompt.len()..];
            assert_eq!(thinking, Thinking::after(params, prompt, output), "opened again after {output:?}");
        }
        text.split_off(prompt.len())
    }

    /// Tokens that came about otherwise, which are not the forced ones, do not end thinking.
    #[test]
    fn forced_tokens_begin_again_where_another_came_first() {
        let next = |forced: &[u32], prompt: &[u32], output: &[u32]| {
            let params = params(1, forced);
            Thinking::after(&params, prompt, output).forced(&params)
        };
        // Inside, one spent: 5, 4 and 3 are due.
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

    #[test]
    fn by_hand() {
        for (budget, forced, prompt, wishes, expected) in [
            (2, &[][..], &[][..], &[1, 2, 7, 8, 9, 9][..], &[1, 2, 7, 8, 3, 9][..]),
            (2, &[5, 3], &[], &[1, 2, 7, 8, 9, 9, 9], &[1, 2, 7, 8, 5, 3, 9]),
            // Over in time.
            (3, &[5, 3], &[], &[1, 2, 7, 3, 9, 9], &[1, 2, 7, 3, 9, 9]),
            // The budget is one for all stretches: two spent, one left.
            (3, &[5, 3], &[], &[1, 2, 7, 3, 9, 1, 2, 7, 7, 7, 7], &[1, 2, 7, 3, 9, 1, 2, 7, 5, 3, 7]),
            (2, &[5, 3], &[], &[1, 2, 7, 3, 1, 2, 7, 7, 7], &[1, 2, 7, 3, 1, 2, 5, 3, 7]),
            // Thinking that the prompt began, and what it spent costs nothing.
            (1, &[], &[1, 2, 7, 7], &[8, 8, 8], &[8, 3, 8]),
            (0, &[5, 3], &[4, 1, 2], &[8, 8, 8], &[5, 3, 8]),
            (0, &[], &[1, 2, 3], &[8, 1, 2, 9, 9], &[8, 1, 2, 3, 9]),
            // A start among forced tokens is none.
            (0, &[3, 1, 2], &[1, 2], &[8, 8, 8, 8, 8], &[3, 1, 2, 8, 8]),
        ] {
            assert_eq!(emitted(&params(budget, forced), prompt, wishes), expected, "{budget} {prompt:?} {wishes:?}");
        }
    }
}
