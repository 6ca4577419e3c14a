//! GBNF, the grammars of llama.cpp (and, with it, those that XGrammar calls EBNF), as grammars of llguidance.
//!
//! GBNF has no lexer: a rule is read character by character, and whatever derivation there is counts. The automata here have one, which
//! takes the longest match: `[a-z]+ "b"` as two terminals would never find its `b`. So terminals are chosen such that the longest match is
//! the only one. A terminal is as much of a rule as is regular, since an automaton of bytes is what masks are made from fast; and where
//! one could run on over what may follow another, it is taken apart, down to single characters, which cannot.
//!
//! [`read`] makes [`rules`] of a text, [`plan`] chooses terminals, [`apart`] says which pairs are in each other's way.

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

/// Longest regular expression of a terminal; a rule that is used in several places is written out in each. A smaller one is taken where the
/// whole would be too large, in the end none but those of single characters.
const LONGEST: [usize; 4] = [4096, 512, 64, 0];
/// Terminals of one grammar, but for single characters: some thousand take the compiler seconds.
const MOST_TERMINALS: usize = 1024;
/// Longest grammar that may come of one.
const MOST_WRITTEN: usize = 1 << 18;

/// The same grammar in the Lark syntax of llguidance.
///
/// # Errors
/// What is wrong with it, and in which line.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut rules = read::read(text)?;
    rules.unroll();
    rules.measure();
    let mut apart = Apart::default();
    for longest in LONGEST {
        let Some(plan) = planned(&rules, longest, &mut apart) else { continue };
        let lark = write::lark(&plan);
        let repeats = lark.matches(['?', '*', '+']).count() + lark.matches("{0,").count();
        if lark.len() <= MOST_WRITTEN && repeats <= 2 * MAX_GRAMMAR_REPEATS {
            return Ok(lark);
        }
    }
    Err(format!("is too large; make it smaller ({MOST_WRITTEN} bytes are allowed once its rules are written out)"))
}

/// Terminals that are in no other's way, unless they are too many.
fn planned(rules: &rules::Rules, longest: usize, apart: &mut Apart) -> Option<Plan> {
    let mut opened = Opened::default();
    loop {
        let plan = Plan::of(rules, longest, &opened);
        if plan.terminals.iter().filter(|terminal| !terminal.is_character).count() > MOST_TERMINALS {
            return None;
        }
        let wide = apart.too_wide(&plan);
        if wide.is_empty() {
            return Some(plan);
        }
        // Each pass opens a part that was closed, so there is a last one.
        for terminal in wide {
            opened.open(rules, &plan.terminals[terminal].from);
        }
    }
}
