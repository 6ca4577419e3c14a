//! A draft token's distribution, kept until the token is verified.

use super::distribution::Distribution;

/// The tokens a draft token was drawn from and their integer masses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    entries: Vec<(u32, u64)>,
    total: u64,
}

impl Kept {
    /// Tokens of nonzero mass, ascending ids.
    #[must_use]
    pub fn entries(&self) -> &[(u32, u64)] {
        &self.entries
    }

    /// The sum of all masses.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.entries.capacity() * size_of::<(u32, u64)>()
    }
}

impl From<&Distribution> for Kept {
    fn from(distribution: &Distribution) -> Self {
        let kept = distribution.kept().iter().filter(|w| w.mass > 0);
        let mut entries: Vec<_> = kept.map(|w| (w.candidate.token, w.mass)).collect();
        entries.sort_unstable();
        Self { entries, total: distribution.total() }
    }
}
