//! One row of logits as it arrived: bytes in one of three number formats, possibly unaligned.

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

/// A row of `vocab_size` logits, borrowed from the message or region it arrived in.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    dtype: Dtype,
    bytes: &'a [u8],
}

impl<'a> Logits<'a> {
    /// A row over `bytes`, whose length must be a multiple of the value size.
    ///
    /// # Panics
    /// If it is not, which is a bug: lengths are checked where messages are read.
    #[must_use]
    pub fn new(dtype: Dtype, bytes: &'a [u8]) -> Self {
        assert!(bytes.len().is_multiple_of(dtype.size()), "a row has whole values; this is a bug");
        Self { dtype, bytes }
    }

    /// Its number format.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its bytes; no alignment is promised.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of logits.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// The logit of one token, widened exactly to f32.
    ///
    /// # Panics
    /// If `token` is not in the vocabulary.
    #[must_use]
    #[inline]
    pub fn get(&self, token: u32) -> f32 {
        let at = token as usize * self.dtype.size();
        match self.dtype {
            Dtype::F32 => f32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes")),
            Dtype::F16 => {
                half::f16::from_le_bytes(self.bytes[at..at + 2].try_into().expect("two bytes")).to_f32_const()
            }
            Dtype::Bf16 => half::bf16::from_le_bytes(self.bytes[at..at + 2].try_into().expect("two bytes")).to_f32(),
        }
    }

    /// All logits, widened exactly to f32.
    #[must_use]
    pub fn widen(&self) -> Vec<f32> {
        (0..self.vocab_size() as u32).map(|token| self.get(token)).collect()
    }
}
