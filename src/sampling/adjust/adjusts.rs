//! What a sequence knows about single tokens: one list to its readers, stored as several.

use super::{Penalties, TokenAdjust};
use std::cmp::Ordering;

/// An additional bias for one token's logit, at one position only. It is first added to [`TokenAdjust::bias`], and the
/// sum is added to the logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nudge {
    /// The token.
    pub token: u32,
    /// What is added; finite.
    pub bias: f32,
    /// A bias that is added after all penalties, if some penalty [applies](TokenAdjust::is_penalised) to the token;
    /// otherwise it is added to the bias above. So without penalties it makes no difference, not even in the last bit,
    /// which of the two a nudge is, and every backend can sample the row. Finite; 0 for none.
    pub late: f32,
}

/// What a sequence knows about one token at one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adjusted {
    /// Everything but the late bias.
    pub known: TokenAdjust,
    /// What is added after the penalties: a bias that is [late](TokenAdjust::LATE), and [`Nudge::late`].
    late: f32,
    /// The bias including the late bias.
    whole: f32,
}

impl Adjusted {
    #[inline]
    fn of(known: TokenAdjust, nudge: Option<&Nudge>) -> Self {
        if nudge.is_none() && known.flags & TokenAdjust::LATE == 0 {
            return Self { known, late: 0.0, whole: known.bias };
        }
        Self::sum(known, nudge.unwrap_or(&Nudge { token: known.token, bias: 0.0, late: 0.0 }))
    }

    fn sum(known: TokenAdjust, nudge: &Nudge) -> Self {
        // Nothing is added where there is nothing to add, so that a zero keeps its sign.
        let more = if nudge.late == 0.0 { nudge.bias } else { nudge.bias + nudge.late };
        let sum = |more| if known.is_idle() { more } else { known.bias + more };
        let (early, late) = match known.flags & TokenAdjust::LATE {
            0 => (sum(nudge.bias), nudge.late),
            _ => (nudge.bias, known.bias + nudge.late),
        };
        let flags = known.flags & !TokenAdjust::LATE;
        Self { known: TokenAdjust { bias: early, flags, ..known }, late, whole: sum(more) }
    }

    /// The token.
    #[must_use]
    pub fn token(&self) -> u32 {
        self.known.token
    }

    /// Whether the token may not be emitted.
    #[must_use]
    pub fn is_banned(&self) -> bool {
        self.known.flags & TokenAdjust::BANNED != 0
    }

    /// The adjustment with one bias: before the penalties, or after them. `None`: there is one before them and one
    /// after them.
    #[must_use]
    #[inline]
    pub fn with_one_bias(&self, penalties: &Penalties) -> Option<TokenAdjust> {
        if self.late == 0.0 || !self.known.is_penalised(penalties) {
            return Some(TokenAdjust { bias: self.whole, ..self.known });
        }
        let late = TokenAdjust { bias: self.late, flags: self.known.flags | TokenAdjust::LATE, ..self.known };
        (self.known.bias == 0.0).then_some(late)
    }

    /// The adjusted logit, see [`TokenAdjust::apply`].
    #[must_use]
    #[inline]
    pub fn apply(&self, logit: f32, penalties: &Penalties) -> f32 {
        match self.with_one_bias(penalties) {
            Some(adjust) => adjust.apply(logit, penalties),
            None => self.known.apply(logit, penalties) + self.late,
        }
    }
}

/// What a sequence knows about single tokens, in ascending order, each token once. It combines three lists: a base
/// list, a short list whose entries replace the base's for the same tokens, and biases that are added to the entries of
/// both. So rows that look ahead in a long history, or that differ little from the last one, need no copy of the base
/// list.
#[derive(Debug, Clone, Copy, Default)]
pub struct Adjusts<'a> {
    base: &'a [TokenAdjust],
    over: &'a [TokenAdjust],
    nudges: &'a [Nudge],
    /// [`TokenAdjust::LATE`] if the biases of both lists of entries are late, or else 0.
    late: u32,
}

impl<'a> Adjusts<'a> {
    /// `base`, with the entries of `over` instead of its own for the same tokens; both in ascending order.
    #[must_use]
    pub fn new(base: &'a [TokenAdjust], over: &'a [TokenAdjust]) -> Self {
        Self { base, over, nudges: &[], late: 0 }
    }

    /// The same with `nudges`, which are in ascending order, each token once.
    #[must_use]
    pub fn nudged(self, nudges: &'a [Nudge]) -> Self {
        Self { nudges, ..self }
    }

    /// The same, with the biases of the entries added after the penalties if `are_late`. Nudges stay as they are.
    #[must_use]
    pub fn biased_late(self, are_late: bool) -> Self {
        Self { late: if are_late { TokenAdjust::LATE } else { 0 }, ..self }
    }

    /// An entry, with its bias where [`biased_late`](Self::biased_late) has it.
    #[inline]
    fn placed(&self, adjust: TokenAdjust) -> TokenAdjust {
        let late = if adjust.bias == 0.0 { 0 } else { self.late };
        TokenAdjust { flags: adjust.flags | late, ..adjust }
    }

    /// An upper bound of the number of entries.
    #[must_use]
    pub fn len_bound(&self) -> usize {
        self.base.len() + self.over.len() + self.nudges.len()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len_bound() == 0
    }

    /// What is known of one token: its entry among [all](Self::iter).
    #[must_use]
    pub fn get(&self, token: u32) -> Option<Adjusted> {
        let find = |list: &[TokenAdjust]| Some(list[list.binary_search_by_key(&token, |adjust| adjust.token).ok()?]);
        let known = find(self.over).or_else(|| find(self.base)).filter(|adjust| !adjust.is_idle());
        let known = known.map(|adjust| self.placed(adjust));
        let nudge = self.nudges.binary_search_by_key(&token, |nudge| nudge.token).ok().map(|at| &self.nudges[at]);
        let nothing = || nudge.map(|_| TokenAdjust { token, ..TokenAdjust::default() });
        Some(Adjusted::of(known.or_else(nothing)?, nudge))
    }

    /// Whether some token has a bias before the penalties and one after them. Costs a search for each nudge, since a
    /// token without one has at most one bias.
    #[must_use]
    pub fn have_two_biases(&self, penalties: &Penalties) -> bool {
        let two = |nudge: &Nudge| self.get(nudge.token).is_some_and(|found| found.with_one_bias(penalties).is_none());
        !penalties.is_off() && self.nudges.iter().any(two)
    }

    /// Calls `each` with the entries in ascending order. Faster than [`Adjusts::iter`] where there is only the base
    /// list.
    #[inline]
    pub fn for_each(&self, mut each: impl FnMut(Adjusted)) {
        if self.over.is_empty() && self.nudges.is_empty() {
            let known = self.base.iter().filter(|adjust| !adjust.is_idle());
            known.for_each(|adjust| each(Adjusted::of(self.placed(*adjust), None)));
        } else {
            self.iter().for_each(each);
        }
    }

    /// The entries in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Adjusted> + use<'a> {
        // A token that was seen and has left the window may have left an entry that says nothing.
        let known = over(self.base, self.over).filter(|adjust| !adjust.is_idle());
        let lists = *self;
        let known = known.map(move |adjust| lists.placed(adjust));
        let (mut known, mut nudges) = (known.peekable(), self.nudges.iter().peekable());
        std::iter::from_fn(move || {
            match first(known.peek(), nudges.peek(), |known, nudge| known.token.cmp(&nudge.token))? {
                Ordering::Less => known.next().map(|known| Adjusted::of(known, None)),
                Ordering::Equal => Some(Adjusted::of(known.next()?, nudges.next())),
                Ordering::Greater => nudges.next().map(|nudge| {
                    Adjusted::of(TokenAdjust { token: nudge.token, ..TokenAdjust::default() }, Some(nudge))
                }),
            }
        })
    }
}

/// Both lists merged in ascending order. Where both have an entry for a token, the second list's is taken.
fn over<'a>(base: &'a [TokenAdjust], over: &'a [TokenAdjust]) -> impl Iterator<Item = TokenAdjust> + use<'a> {
    let (mut base, mut over) = (base.iter().copied().peekable(), over.iter().copied().peekable());
    std::iter::from_fn(move || match first(base.peek(), over.peek(), |base, over| base.token.cmp(&over.token))? {
        Ordering::Less => base.next(),
        Ordering::Equal => base.next().and(over.next()),
        Ordering::Greater => over.next(),
    })
}

/// Which of two lists has the next entry (`Less`: the first, `Equal`: both); `None`: both have ended.
fn first<A, B>(one: Option<&A>, other: Option<&B>, compare: impl Fn(&A, &B) -> Ordering) -> Option<Ordering> {
    match (one, other) {
        (Some(one), Some(other)) => Some(compare(one, other)),
        (Some(_), None) => Some(Ordering::Less),
        (None, Some(_)) => Some(Ordering::Greater),
        (None, None) => None,
    }
}
impl PartialEq for Adjusts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a> From<&'a [TokenAdjust]> for Adjusts<'a> {
    fn from(base: &'a [TokenAdjust]) -> Self {
        Self::new(base, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(adjusts: Adjusts<'_>) -> Vec<TokenAdjust> {
        adjusts.iter().map(|adjust| adjust.known).collect()
    }

    #[test]
    fn what_is_out_of_sight_is_left_out() {
        let seen = TokenAdjust { token: 4, flags: TokenAdjust::SEEN, output_count: 1, ..TokenAdjust::default() }.at(7);
        let mut forgotten = seen;
        forgotten.forget();
        assert!(forgotten.is_idle() && !seen.is_idle());
        assert_eq!(Adjusts::new(&[seen], &[forgotten]).iter().next(), None);
        let banned = TokenAdjust { flags: TokenAdjust::BANNED, ..forgotten };
        assert_eq!(known(Adjusts::new(&[banned], &[])), [banned]);
    }

    #[test]
    fn entries_over_the_list_take_the_place_of_its_own() {
        let entry = |token, output_count| TokenAdjust { token, output_count, ..TokenAdjust::default() };
        let list = |entries: &[(u32, u32)]| entries.iter().map(|&(t, n)| entry(t, n)).collect::<Vec<_>>();
        let (base, over) = (list(&[(1, 1), (4, 1), (7, 1)]), list(&[(0, 2), (4, 2), (9, 2)]));
        assert_eq!(known(Adjusts::new(&base, &over)), list(&[(0, 2), (1, 1), (4, 2), (7, 1), (9, 2)]));
        assert_eq!(known(Adjusts::new(&base, &[])), base);
        assert_eq!(known(Adjusts::new(&[], &over)), over);
        assert!(Adjusts::default().is_empty() && !Adjusts::new(&[], &over).is_empty());
    }

    #[test]
    fn nudges_are_added_to_the_bias() {
        let entry = |token, bias| TokenAdjust { token, bias, ..TokenAdjust::default() };
        let (base, over) = ([entry(1, 1.0), entry(4, 2.0)], [entry(4, 8.0)]);
        let nudges = [(0, 0.25), (4, 0.5), (9, -1.0)].map(|(token, bias)| Nudge { token, bias, late: 0.0 });
        let adjusts = Adjusts::new(&base, &over).nudged(&nudges);
        let expected = [entry(0, 0.25), entry(1, 1.0), entry(4, 8.5), entry(9, -1.0)];
        assert_eq!(known(adjusts), expected);
        assert!(!Adjusts::new(&[], &[]).nudged(&nudges).is_empty() && adjusts.len_bound() >= expected.len());
        // Everything else that is known about the token stays.
        let seen = [TokenAdjust { flags: TokenAdjust::SEEN, output_count: 3, ..entry(9, 1.0) }];
        assert_eq!(known(Adjusts::new(&seen, &[]).nudged(&nudges[2..])), [TokenAdjust { bias: 0.0, ..seen[0] }]);
        // Looking entries up one by one gives the same, and idle ones are missing there too.
        let idle = [TokenAdjust { token: 1, ..TokenAdjust::default() }];
        for adjusts in
            [adjusts, Adjusts::new(&seen, &idle).nudged(&nudges[2..]), Adjusts::new(&base, &idle), Adjusts::default()]
        {
            (0..11).for_each(|token| {
                assert_eq!(adjusts.get(token), adjusts.iter().find(|a| a.token() == token), "{token}")
            });
        }
    }

    /// As in llama.cpp, ExLlamaV2 and text-generation-webui: repetition penalty, then frequency and presence, then DRY.
    #[test]
    fn what_is_late_comes_behind_the_penalties() {
        let off = Penalties::OFF;
        let (rep2, encoder) = (Penalties { repetition: 2.0, ..off }, Penalties { encoder: 2.0, ..off });
        let all = Penalties { frequency: 0.5, presence: 0.25, ..rep2 };
        let decay = crate::params::Decay { place: 3, last_n: 1, decay_n: 1 };
        let (faded, length) = (Penalties { decay, ..rep2 }, Penalties { length: 0.5, ..off });
        let seen = TokenAdjust { token: 7, flags: TokenAdjust::SEEN, bias: 1.0, output_count: 0 };
        let twice = TokenAdjust { output_count: 2, ..seen };
        let of_prompt = TokenAdjust { flags: TokenAdjust::PROMPT, ..seen };
        let end = TokenAdjust { flags: TokenAdjust::END, ..seen };
        let banned = TokenAdjust { flags: twice.flags | TokenAdjust::BANNED, ..twice };
        // With a bias of 1, and DRY that subtracts 3: the result if DRY comes first, then if it comes last.
        let cases = [
            (seen, 7.0, rep2, (7.0 + 1.0 - 3.0) / 2.0, (7.0 + 1.0) / 2.0 - 3.0),
            (seen, -3.0, rep2, (-3.0 + 1.0 - 3.0) * 2.0, (-3.0 + 1.0) * 2.0 - 3.0),
            // If DRY comes first, the logit's sign changes before the penalty. If it comes last, that does not matter.
            (seen, 1.0, rep2, (1.0 + 1.0 - 3.0) * 2.0, (1.0 + 1.0) / 2.0 - 3.0),
            (twice, 7.0, all, 2.5 - 1.25, 4.0 - 1.25 - 3.0),
            (of_prompt, 7.0, encoder, 10.0, 16.0 - 3.0),
            (twice.at(1), 7.0, faded, 5.0 / 1.5, 8.0 / 1.5 - 3.0),
            (end, 7.0, length, 7.5, 12.0 - 3.0),
            // No penalty applies to these.
            (seen, 7.0, off, 5.0, 5.0),
            (of_prompt, 7.0, rep2, 5.0, 5.0),
            (seen, 7.0, Penalties { frequency: 0.5, presence: 0.25, ..off }, 5.0, 5.0),
            (banned, 7.0, all, f32::NEG_INFINITY, f32::NEG_INFINITY),
            (twice, f32::NEG_INFINITY, all, f32::NEG_INFINITY, f32::NEG_INFINITY),
        ];
        for (known, logit, penalties, first, last) in cases {
            let of = |bias, late| {
                let nudges = [Nudge { token: 7, bias, late }];
                let adjusts = Adjusts::new(&[], std::slice::from_ref(&known)).nudged(&nudges);
                let found = adjusts.get(7).expect("it is there");
                let two = late != 0.0 && known.is_penalised(&penalties);
                assert_eq!(
                    (adjusts.have_two_biases(&penalties), found.with_one_bias(&penalties).is_none()),
                    (two, two)
                );
                found.apply(logit, &penalties)
            };
            assert_eq!((of(-3.0, 0.0), of(0.0, -3.0)), (first, last), "{known:?} on {logit} with {penalties:?}");
            // A sequence's bias is added before the penalties.
            let both = TokenAdjust { bias: 0.5, ..known };
            let nudges = [Nudge { token: 7, bias: 0.5, late: -3.0 }];
            let apart = Adjusts::new(&[both], &[]).nudged(&nudges).get(7).expect("it is there");
            assert_eq!(apart.apply(logit, &penalties), last);
            // If that bias is late too, it is as if the logit had none and DRY subtracted less.
            let late = TokenAdjust { bias: -2.5, flags: known.flags | TokenAdjust::LATE, ..known };
            let none = TokenAdjust { bias: 0.0, ..known };
            let of = |known, early, late| {
                let nudges = [Nudge { token: 7, bias: early, late }];
                let adjusts = Adjusts::new(std::slice::from_ref(&known), &[]).nudged(&nudges);
                (adjusts.get(7).expect("it is there").apply(logit, &penalties), adjusts.have_two_biases(&penalties))
            };
            assert_eq!(of(late, 0.0, -0.5), of(none, 0.0, -3.0), "{known:?} on {logit} with {penalties:?}");
            assert_eq!(of(late, 1.0, -0.5), of(none, 1.0, -3.0), "{known:?} on {logit} with {penalties:?}");
            let alone = |adjusts: Adjusts<'_>| adjusts.get(7).map(|a| a.apply(logit, &penalties));
            assert_eq!(alone(Adjusts::new(&[late], &[])), Some(of(none, 0.0, -2.5).0));
            // The same for all entries at once, in all ways to look at them.
            let early = [TokenAdjust { bias: -2.5, ..known }];
            for adjusts in [Adjusts::new(&early, &[]), Adjusts::new(&[], &early)].map(|lists| lists.biased_late(true)) {
                assert_eq!(alone(adjusts), Some(of(none, 0.0, -2.5).0));
                assert_eq!(adjusts.iter().next(), adjusts.get(7));
                adjusts.for_each(|found| assert_eq!(Some(found), adjusts.get(7)));
            }
        }
    }

    #[test]
    fn without_penalties_late_nudges_have_the_bits_of_others() {
        let entry = TokenAdjust { token: 3, bias: 0.1, ..TokenAdjust::default() };
        let (bias, late) = (0.7, -0.3);
        let [apart, one, alone] =
            [(bias, late), (bias + late, 0.0), (0.0, late)].map(|(bias, late)| [Nudge { token: 3, bias, late }]);
        let of = |entry: TokenAdjust, nudges: &[Nudge], logit| {
            let entries = [entry];
            let adjusts = Adjusts::new(&entries, &[]).nudged(nudges);
            adjusts.get(3).expect("it is there").apply(logit, &Penalties::OFF).to_bits()
        };
        let late_entry = TokenAdjust { flags: TokenAdjust::LATE, ..entry };
        for logit in [0.0, -0.0, 1e-8, 0.123, -7.7, 1e9, f32::NEG_INFINITY] {
            assert_eq!(of(entry, &apart, logit), of(entry, &one, logit), "{logit}");
            assert_eq!(of(late_entry, &apart, logit), of(entry, &one, logit), "{logit}");
        }
        // If a late bias is all there is, it is added like a plain nudge.
        let alone = Adjusts::default().nudged(&alone).get(3).expect("it is there");
        assert_eq!(alone.with_one_bias(&Penalties::OFF).map(|a| a.bias), Some(late));
        let repetition = Penalties { repetition: 2.0, ..Penalties::OFF };
        assert!(!Adjusts::new(&[entry], &[]).nudged(&apart).have_two_biases(&repetition));
    }
}
