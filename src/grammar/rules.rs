//! Computes how much memory the rules of a compiled grammar take. The length of its text does not tell: a part that may
//! come three to two billion times becomes two hundred rules, and a condition on what may be empty is stored once for
//! each way to meet it.

use llguidance::earley::{CGrammar, ParamCond};
use std::collections::HashSet;

/// How many bytes a symbol takes besides its name and its rules, a rule besides its parts, each part, and each part of
/// a condition. Measured, including what growing by doubling leaves unused.
const OF_SYMBOL: usize = 680;
const OF_RULE: usize = 64;
const OF_PART: usize = 48;
const OF_CONDITION: usize = 32;

/// How many bytes all rules take that the grammar's start leads to.
pub(super) fn bytes(grammar: &CGrammar) -> usize {
    let (mut seen, mut left, mut bytes) = (HashSet::from([grammar.start()]), vec![grammar.start()], 0);
    while let Some(symbol) = left.pop() {
        let symbol = grammar.sym_data(symbol);
        let conditions = symbol.rules_cond.iter().chain(&symbol.cond_nullable).map(parts).sum::<usize>();
        bytes += OF_SYMBOL + symbol.name.len() + OF_RULE * symbol.rules.len() + OF_CONDITION * conditions;
        for &rule in &symbol.rules {
            let (parts, ..) = grammar.rule_rhs(rule);
            bytes += OF_PART * parts.len();
            left.extend(parts.iter().filter(|part| seen.insert(**part)));
        }
    }
    bytes
}

/// How many parts a condition has.
fn parts(condition: &ParamCond) -> usize {
    let (mut left, mut count) = (vec![condition], 0);
    while let Some(condition) = left.pop() {
        count += 1;
        match condition {
            ParamCond::And(one, other) | ParamCond::Or(one, other) => left.extend([&**one, &**other]),
            ParamCond::Not(one) => left.push(one),
            _ => {}
        }
    }
    count
}
