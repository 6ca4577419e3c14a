//! What is known about single tokens of a row, as the one list that kernels take.

use crate::sampling::adjust::TokenAdjust;
use crate::sampling::row::RowSpec;
use std::iter::Peekable;

/// All that is known about single tokens as one ascending list, appended to `to`. True when only those may be emitted.
pub(super) fn merge(spec: &RowSpec<'_>, to: &mut Vec<TokenAdjust>) -> bool {
    // Rows with something late have no kernel.
    let mut known = spec.adjusts.iter().map(|adjust| adjust.early()).peekable();
    let mut banned = spec.banned.iter().copied().peekable();
    if let Some(allowed) = spec.allowed {
        let left = allowed.iter().filter(|&&token| !spec.is_masked(token));
        to.extend(left.map(|&token| take(token, &mut known, &mut banned)));
        return true;
    }
    // It leaves few, or there would be no kernel.
    if let Some(mask) = spec.mask {
        to.extend(mask.tokens().map(|token| take(token, &mut known, &mut banned)));
        return true;
    }
    loop {
        let next = [known.peek().map(|adjust| adjust.token), banned.peek().copied()].into_iter().flatten().min();
        let Some(token) = next else { return false };
        to.push(take(token, &mut known, &mut banned));
    }
}

/// Adds these tokens, of which nothing is known, to the ascending list from place `from` on.
pub(super) fn know_too(adjusts: &mut Vec<TokenAdjust>, from: usize, mut tokens: Vec<u32>) {
    if tokens.is_empty() {
        return;
    }
    tokens.sort_unstable();
    tokens.dedup();
    let known = adjusts.split_off(from);
    let mut known = known.into_iter().peekable();
    for token in tokens {
        while let Some(before) = known.next_if(|adjust| adjust.token < token) {
            adjusts.push(before);
        }
        let own = known.next_if(|adjust| adjust.token == token);
        adjusts.push(own.unwrap_or(TokenAdjust { token, ..TokenAdjust::default() }));
    }
    adjusts.extend(known);
}

/// What is known about a token; what is known about those before it is passed over.
fn take(
    token: u32,
    known: &mut Peekable<impl Iterator<Item = TokenAdjust>>,
    banned: &mut Peekable<impl Iterator<Item = u32>>,
) -> TokenAdjust {
    while known.next_if(|adjust| adjust.token < token).is_some() {}
    while banned.next_if(|&b| b < token).is_some() {}
    let adjust = known.next_if(|adjust| adjust.token == token);
    let adjust = adjust.unwrap_or(TokenAdjust { token, ..TokenAdjust::default() });
    let ban = if banned.next_if_eq(&token).is_some() { TokenAdjust::BANNED } else { 0 };
    TokenAdjust { flags: adjust.flags | ban, ..adjust }
}
