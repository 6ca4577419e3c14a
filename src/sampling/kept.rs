//! A draft token's distribution, kept until the token is verified.

use super::distribution::Distribution;
use super::logits::{Dtype, Logits};
use super::mass;
use super::order::Candidate;

/// The distribution that a draft token was drawn from: tokens and their integer masses. It is a list where they are
/// few, else the row that they come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    form: Form,
    total: u64,
}

/// How a distribution is held.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Tokens of nonzero mass and their masses, ascending ids.
    List(Vec<(u32, u64)>),
    /// A copy of the row, and what is needed to compute masses from it.
    Row(KeptRow),
}

/// A row of logits, and what is needed to compute masses from them.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptRow {
    /// Number format of `bytes`.
    pub dtype: Dtype,
    /// The logits, as they arrived.
    pub bytes: Vec<u8>,
    /// Tokens whose logit masks, bias and penalties changed, with the new logit; ascending ids.
    pub patches: Vec<(u32, f32)>,
    /// The largest logit.
    pub max: f32,
    /// From [`mass::scale`].
    pub scale: f32,
    /// The last token of the order that is kept; `None`: no token is cut by its place.
    pub last: Option<Candidate>,
    /// The least mass that is kept; smaller masses count as 0.
    pub need: u64,
}

impl Kept {
    /// A distribution in some form, with the sum of its masses.
    #[must_use]
    pub fn new(form: Form, total: u64) -> Self {
        Self { form, total }
    }

    /// How it is held.
    #[must_use]
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// Tokens of nonzero mass and their masses, ascending ids.
    #[must_use]
    pub fn entries(&self) -> Vec<(u32, u64)> {
        match &self.form {
            Form::List(entries) => entries.clone(),
            Form::Row(row) => {
                let masses = (0..row.logits().vocab_size() as u32).map(|token| (token, row.mass(token)));
                masses.filter(|&(_, mass)| mass > 0).collect()
            }
        }
    }

    /// The mass of a token.
    #[must_use]
    pub fn mass(&self, token: u32) -> u64 {
        match &self.form {
            Form::List(entries) => entries.binary_search_by_key(&token, |e| e.0).map_or(0, |at| entries[at].1),
            Form::Row(row) => row.mass(token),
        }
    }

    /// The sum of all masses.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let held = match &self.form {
            Form::List(entries) => entries.capacity() * size_of::<(u32, u64)>(),
            Form::Row(row) => row.bytes.capacity() + row.patches.capacity() * size_of::<(u32, f32)>(),
        };
        size_of::<Self>() + held
    }
}

impl KeptRow {
    /// The row as it arrived.
    #[must_use]
    pub fn logits(&self) -> Logits<'_> {
        Logits::new(self.dtype, &self.bytes)
    }

    /// The mass of a token; 0 if it was not kept or is not in the vocabulary.
    #[must_use]
    pub fn mass(&self, token: u32) -> u64 {
        let logits = self.logits();
        match self.patches.binary_search_by_key(&token, |patch| patch.0) {
            Ok(at) => self.weigh(token, self.patches[at].1),
            Err(_) if (token as usize) < logits.vocab_size() => self.weigh(token, logits.get(token)),
            Err(_) => 0,
        }
    }

    /// The mass of a token with this logit; 0 if it is cut.
    #[must_use]
    pub fn weigh(&self, token: u32, logit: f32) -> u64 {
        let mass = mass::mass(mass::exponent(logit, self.max, self.scale));
        let cut = self.last.is_some_and(|last| last.precedes(&Candidate { token, logit }));
        if cut || mass < self.need { 0 } else { mass }
    }
}

impl From<&Distribution> for Kept {
    fn from(distribution: &Distribution) -> Self {
        let kept = distribution.kept().iter().filter(|w| w.mass > 0);
        let mut entries: Vec<_> = kept.map(|w| (w.candidate.token, w.mass)).collect();
        entries.sort_unstable();
        Self::new(Form::List(entries), distribution.total())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: Vec<u8>) -> KeptRow {
        let last = Some(Candidate { token: 2, logit: 1.0 });
        KeptRow { dtype: Dtype::F32, bytes, patches: vec![(3, 2.0)], max: 2.0, scale: 1.0, last, need: 0 }
    }

    #[test]
    fn a_row_is_the_list_that_it_stands_for() {
        let bytes = Dtype::F32.encode(&[1.0, 0.5, 1.0, 9.0, 1.0, f32::NEG_INFINITY]);
        let half = mass::MASS_ONE / 2;
        let kept = Kept::new(Form::Row(row(bytes.clone())), 2 * mass::MASS_ONE);
        assert_eq!(kept.entries(), [(0, half), (2, half), (3, 2 * half)]);
        for (token, expected) in [(0, half), (1, 0), (2, half), (3, 2 * half), (4, 0), (5, 0), (6, 0)] {
            assert_eq!(kept.mass(token), expected, "{token}");
        }
        let needy = KeptRow { need: half + 1, ..row(bytes) };
        assert_eq!(Kept::new(Form::Row(needy), 2 * half).entries(), [(3, 2 * half)]);
    }

    #[test]
    fn bytes_are_what_is_held() {
        let held = |form| Kept::new(form, 1).bytes() - size_of::<Kept>();
        assert_eq!(held(Form::List(vec![(0, 1); 5])), 5 * 16);
        assert_eq!(held(Form::Row(row(vec![0; 400]))), 400 + 8);
    }
}
