//! Sets of bytes.

/// Some of the 256 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bytes([u64; 4]);

impl Bytes {
    pub(super) const ALL: Self = Self([u64::MAX; 4]);

    pub(super) fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    /// Adds the bytes of another set, and returns whether any were new.
    pub(super) fn add(&mut self, other: Self) -> bool {
        let before = *self;
        for (own, more) in self.0.iter_mut().zip(other.0) {
            *own |= more;
        }
        *self != before
    }

    pub(super) fn meets(self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(own, other)| own & other != 0)
    }
}
