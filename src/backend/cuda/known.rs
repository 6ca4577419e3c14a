//! What is known about single tokens of a row, as the one list that kernels read.

use crate::sampling::adjust::TokenAdjust;
use crate::sampling::row::RowSpec;
use std::iter::Peekable;

/// Appends all that is known about single tokens to `to`, as one ascending list. Returns whether only these tokens may
/// be emitted.
pub(super) fn merge(spec: &RowSpec<'_>, to: &mut Vec<TokenAdjust>) -> bool {
    // One bias is enough, because rows where a token has two have no kernel.
    let known = spec.adjusts.iter().map(|adjust| adjust.with_one_bias(&spec.penalties).unwrap_or(adjust.known));
    let mut known = known.peekable();
    let mut banned = spec.banned.iter().copied().peekable();
    if let Some(allowed) = spec.allowed {
        let left = allowed.iter().filter(|&&token| !spec.is_masked(token));
        to.extend(left.map(|&token| take(token, &mut known, &mut banned)));
        return true;
    }
    // The mask leaves few tokens, since the row would have no kernel otherwise.
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

/// Adds entries for these tokens to the ascending list that begins at `from`, unless they have entries already.
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

/// The entry of a token. Entries before it are skipped.
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
