//! Translates GBNF, the grammars of llama.cpp (and with it those that XGrammar calls EBNF), into grammars of
//! llguidance.
//!
//! GBNF has no lexer: a rule is read character by character, and any derivation counts. The automata here have a lexer,
//! which takes the longest match: with `[a-z]+ "b"` as two terminals it would never find the `b`. So terminals are
//! chosen such that the longest match is the only one. A terminal is as much of a rule as is regular, because masks are
//! computed fast from an automaton of bytes. If a terminal could run on over what may follow another one, it is taken
//! apart, if need be down to single characters, which cannot.
//!
//! [`read`] turns a text into [`rules`], [`plan`] chooses terminals, and [`apart`] finds pairs of terminals that are in
//! each other's way.

mod apart;
mod bytes;
mod plan;
mod read;
mod rules;
#[cfg(test)]
pub(super) mod stacks;
mod write;

use crate::params::grammar::MAX_GRAMMAR_REPEATS;
use apart::Apart;
use plan::{Opened, Plan};
pub(super) use write::text_of;

/// The longest regular expression of a terminal. A rule that is used in several places is written out in each. If the
/// whole grammar becomes too large, the next smaller value is tried; with the last one, all terminals are single
/// characters.
const LONGEST: [usize; 4] = [4096, 512, 64, 0];
/// The most terminals of one grammar, not counting single characters: some thousand take the compiler seconds.
const MAX_TERMINALS: usize = 1024;
/// The largest grammar that may be written.
const MAX_WRITTEN: usize = 1 << 18;

/// The same grammar in llguidance's Lark syntax.
///
/// # Errors
/// What is wrong with it, and on which line.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut rules = read::read(text)?;
    rules.unroll();
    rules.measure();
    let mut apart = Apart::default();
    for longest in LONGEST {
        let Some(plan) = planned(&rules, longest, &mut apart) else { continue };
        let lark = write::lark(&plan);
        let repeats = lark.matches(['?', '*', '+']).count() + lark.matches("{0,").count();
        if lark.len() <= MAX_WRITTEN && repeats <= 2 * MAX_GRAMMAR_REPEATS {
            return Ok(lark);
        }
    }
    Err(format!("is too large; make it smaller (at most {MAX_WRITTEN} bytes are allowed once its rules are expanded)"))
}

/// A plan whose terminals are not in each other's way; `None` if there would be too many.
fn planned(rules: &rules::Rules, longest: usize, apart: &mut Apart) -> Option<Plan> {
    let mut opened = Opened::default();
    loop {
        let plan = Plan::of(rules, longest, &opened);
        if plan.terminals.iter().filter(|terminal| !terminal.is_character).count() > MAX_TERMINALS {
            return None;
        }
        let wide = apart.too_wide(&plan);
        if wide.is_empty() {
            return Some(plan);
        }
        // Each pass opens a part that was closed before, so the loop ends.
        for terminal in wide {
            opened.open(rules, &plan.terminals[terminal].from);
        }
    }
}
