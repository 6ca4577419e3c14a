//! One row of logits as it arrived: bytes in one of three number formats, possibly unaligned, or a [list](super::listed).

use super::listed::Listed;
use super::spread::Spread;
use std::marker::PhantomData;

/// Number format of logits; values are little endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
}

impl Dtype {
    /// Every format.
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    /// Bytes per value.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// Name as used in flags, metrics and server info.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }

    /// Encodes `values` in this format, rounding to nearest even. For clients, tests and benches.
    #[must_use]
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Dtype::F16 => values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
            Dtype::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        }
    }
}

/// Bytes of a foreign row that are read at once: a multiple of every backend's block, and few enough that reading ahead
/// goes on meanwhile.
pub const PIECE: usize = 512;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Memory that another process may write at any time. Two reads of it may differ, so it is read once, by copying.
///
/// # Safety
/// Passes read what [`mapped`](Self::mapped) gives without another check, and devices what lies at
/// [`device_address`](Self::device_address). Whoever implements these promises that so many bytes stay there as long as
/// `self` is borrowed, and that no reference into them exists.
pub unsafe trait Foreign: std::fmt::Debug + Sync {
    /// Copies bytes from `offset` on: a whole row, or any part where rows [may be read in parts](Self::in_parts).
    ///
    /// # Panics
    /// If the memory has fewer bytes, which is a bug: offsets are checked where messages are read.
    fn copy(&self, offset: usize, to: &mut [u8]);

    /// Whether a part of a row can be read, in no more time than its share of the row.
    fn in_parts(&self) -> bool {
        false
    }

    /// The address in this process of `len` bytes from `offset` on, if volatile reads of them are allowed as long as
    /// the memory is borrowed. Others may write there: no reference into it may exist.
    ///
    /// # Panics
    /// As [`copy`](Self::copy).
    fn mapped(&self, offset: usize, len: usize) -> Option<*const u8> {
        let _ = (offset, len);
        None
    }

    /// The address for the device that samples, if this is memory of that device.
    fn device_address(&self) -> Option<u64> {
        None
    }

    /// What the row at `offset` is made from, if it is not in memory as such.
    fn spread(&self, offset: usize) -> Option<Spread<'_>> {
        let _ = offset;
        None
    }
}

/// A foreign row that is mapped into this process, at the beginning of a cache line.
#[derive(Debug, Clone, Copy)]
pub struct Mapped<'a> {
    dtype: Dtype,
    at: *const u8,
    len: usize,
    memory: PhantomData<&'a dyn Foreign>,
}

impl Mapped<'_> {
    /// Its number format.
    #[must_use]
    pub fn dtype(self) -> Dtype {
        self.dtype
    }

    /// The address of its first byte.
    #[must_use]
    pub fn at(self) -> *const u8 {
        self.at
    }

    /// Its length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(self) -> usize {
        self.len
    }
}

/// A row of `vocab_size` logits, borrowed from the message or region it arrived in.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    dtype: Dtype,
    source: Source<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Source<'a> {
    Here(&'a [u8]),
    Foreign { memory: &'a dyn Foreign, offset: usize, len: usize },
    Listed(&'a Listed),
}

impl<'a> Logits<'a> {
    /// A row over `bytes`, whose length must be a multiple of the value size.
    ///
    /// # Panics
    /// If it is not, which is a bug: lengths are checked where messages are read.
    #[must_use]
    pub fn new(dtype: Dtype, bytes: &'a [u8]) -> Self {
        assert!(bytes.len().is_multiple_of(dtype.size()), "a row has whole values; this is a bug");
        Self { dtype, source: Source::Here(bytes) }
    }

    /// A row of `vocab_size` values in foreign memory. A backend [copies it](Self::taken) before it reads it.
    #[must_use]
    pub fn foreign(dtype: Dtype, memory: &'a dyn Foreign, offset: usize, vocab_size: usize) -> Self {
        Self { dtype, source: Source::Foreign { memory, offset, len: vocab_size * dtype.size() } }
    }

    /// A row that lists only some of its tokens.
    #[must_use]
    pub fn of_list(row: &'a Listed) -> Self {
        Self { dtype: Dtype::F32, source: Source::Listed(row) }
    }

    /// The list, if the row is one. Only [the specification](super::sample_row) reads such rows.
    #[must_use]
    pub fn listed(&self) -> Option<&'a Listed> {
        if let Source::Listed(row) = self.source { Some(row) } else { None }
    }

    /// Its number format.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its bytes; no alignment is promised.
    ///
    /// # Panics
    /// If the row is still in foreign memory, or is a list, which is a bug of the backend.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        match self.source {
            Source::Here(bytes) => bytes,
            Source::Foreign { .. } => panic!("a foreign row is copied before it is looked at; this is a bug"),
            Source::Listed(_) => panic!("a list has no bytes; this is a bug"),
        }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        match self.source {
            Source::Here(bytes) => bytes.len(),
            Source::Foreign { len, .. } => len,
            Source::Listed(row) => size_of_val(row.entries()),
        }
    }

    /// How many bytes of a whole row take as long to sample as this row.
    #[must_use]
    pub fn time_bytes(&self) -> usize {
        self.listed().map_or(self.byte_len(), Listed::time_bytes)
    }

    /// Whether it is in foreign memory.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        matches!(self.source, Source::Foreign { .. })
    }

    /// Identifies the foreign memory that the row is in, to compare whether two rows are in the same.
    #[must_use]
    pub fn memory(&self) -> Option<usize> {
        match self.source {
            Source::Foreign { memory, .. } => Some(std::ptr::from_ref(memory).addr()),
            Source::Here(_) | Source::Listed(_) => None,
        }
    }

    /// The row's address on the device, if it is in memory of the device.
    #[must_use]
    pub fn device_address(&self) -> Option<u64> {
        match self.source {
            Source::Foreign { memory, offset, .. } => memory.device_address().map(|address| address + offset as u64),
            Source::Here(_) | Source::Listed(_) => None,
        }
    }

    /// What the row is made from, if it is not in memory as such.
    #[must_use]
    pub fn spread(&self) -> Option<Spread<'a>> {
        if let Source::Foreign { memory, offset, .. } = self.source { memory.spread(offset) } else { None }
    }

    /// Whether the row, or the one that it is made from, is in memory of the device.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        self.spread().map_or(*self, |spread| spread.sent).device_address().is_some()
    }

    /// Whether it is foreign and may be [read in parts](Foreign::in_parts).
    #[must_use]
    pub fn in_parts(&self) -> bool {
        matches!(self.source, Source::Foreign { memory, .. } if memory.in_parts())
    }

    /// Where the row is mapped, if it is foreign and begins at a cache line.
    #[must_use]
    pub fn mapped(&self) -> Option<Mapped<'a>> {
        let Source::Foreign { memory, offset, len } = self.source else { return None };
        let at = memory.mapped(offset, len).filter(|at| at.addr().is_multiple_of(LINE))?;
        Some(Mapped { dtype: self.dtype, at, len, memory: PhantomData })
    }

    /// Copies some of its bytes, from byte `from` on. Where they are foreign, each read of them may differ.
    ///
    /// # Panics
    /// If the row has fewer bytes, or if it is foreign, cannot be read in parts, and this is not all of it.
    pub fn copy_from(&self, from: usize, to: &mut [u8]) {
        assert!(from + to.len() <= self.byte_len(), "a part lies in its row; this is a bug");
        match self.source {
            Source::Here(bytes) => to.copy_from_slice(&bytes[from..from + to.len()]),
            Source::Foreign { memory, offset, .. } => memory.copy(offset + from, to),
            Source::Listed(_) => panic!("a list has no bytes; this is a bug"),
        }
    }

    /// Copies all of its bytes, reading each once.
    ///
    /// # Panics
    /// If `to` has another length.
    pub fn copy_to(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.byte_len(), "a row is copied whole; this is a bug");
        self.copy_from(0, to);
    }

    /// A copy of the row in `to` if it is foreign, else the row itself.
    ///
    /// # Panics
    /// If it is foreign and `to` has another length.
    #[must_use]
    pub fn taken<'b>(&self, to: &'b mut [u8]) -> Logits<'b>
    where
        'a: 'b,
    {
        if !self.is_foreign() {
            return *self;
        }
        self.copy_to(to);
        Logits::new(self.dtype, to)
    }

    /// Number of logits.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.listed().map_or_else(|| self.byte_len() / self.dtype.size(), Listed::vocab_size)
    }

    /// The logit of one token, widened exactly to f32.
    ///
    /// # Panics
    /// If `token` is not in the vocabulary.
    #[must_use]
    #[inline]
    pub fn get(&self, token: u32) -> f32 {
        let (at, bytes) = (token as usize * self.dtype.size(), self.bytes());
        match self.dtype {
            Dtype::F32 => f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")),
            Dtype::F16 => half::f16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes")).to_f32_const(),
            Dtype::Bf16 => half::bf16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes")).to_f32(),
        }
    }

    /// All logits, widened exactly to f32.
    #[must_use]
    pub fn widen(&self) -> Vec<f32> {
        (0..self.vocab_size() as u32).map(|token| self.get(token)).collect()
    }
}
