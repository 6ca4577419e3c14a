//! How much of a text an automaton has read.

/// How many bytes each byte of text takes in an automaton, and how many each of the items that the grammar has there.
/// Measured, including what growing by doubling leaves unused.
const BYTES_PER_BYTE: usize = 96;
const BYTES_PER_ITEM: usize = 32;

/// Bytes of text that were read, and the total of items that the grammar had there.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    pub(super) bytes: usize,
    pub(super) items: usize,
}

impl Extent {
    /// The larger value of each field.
    pub(super) fn max(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), items: self.items.max(other.items) }
    }

    /// How much memory this takes.
    pub(super) fn memory(self) -> usize {
        self.bytes * BYTES_PER_BYTE + self.items * BYTES_PER_ITEM
    }
}
