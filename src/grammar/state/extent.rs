//! How much of a text an automaton has read.

/// What a byte of text takes in an automaton, and what each of the items does that the grammar has there; measured, with what growing by
/// doubling leaves unused.
const BYTES_PER_BYTE: usize = 96;
const BYTES_PER_ITEM: usize = 32;

/// Bytes of text, and items that the grammar had there, all together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    pub(super) bytes: usize,
    pub(super) items: usize,
}

impl Extent {
    /// The larger of each.
    pub(super) fn max(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), items: self.items.max(other.items) }
    }

    /// The memory that it takes.
    pub(super) fn memory(self) -> usize {
        self.bytes * BYTES_PER_BYTE + self.items * BYTES_PER_ITEM
    }
}
