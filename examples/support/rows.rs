//! Rows of logits as bytes, as a worker has them.

use super::ngram::NgramModel;
use bytes::BytesMut;
use croupier::proto::LogitsDtype;
use half::{bf16, f16};

/// Number format of the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub(crate) fn wire(self) -> LogitsDtype {
        match self {
            Self::F32 => LogitsDtype::F32,
            Self::F16 => LogitsDtype::F16,
            Self::Bf16 => LogitsDtype::Bf16,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    fn encode(self, value: f32, to: &mut [u8]) {
        match self {
            Self::F32 => to.copy_from_slice(&value.to_le_bytes()),
            Self::F16 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Self::Bf16 => to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }
}

/// Makes rows for contexts.
#[derive(Debug)]
pub(crate) struct RowMaker {
    model: NgramModel,
    dtype: Dtype,
    /// The unigram row in the wire's format.
    base: Vec<u8>,
    patches: Vec<(u32, f32)>,
}

impl RowMaker {
    pub(crate) fn new(model: NgramModel, dtype: Dtype) -> Self {
        let width = dtype.bytes();
        let mut base = vec![0; model.vocab_size() * width];
        for (&logit, bytes) in model.unigram().iter().zip(base.chunks_exact_mut(width)) {
            dtype.encode(logit, bytes);
        }
        Self { model, dtype, base, patches: Vec::new() }
    }

    /// Length of a row in bytes.
    pub(crate) fn row_bytes(&self) -> usize {
        self.base.len()
    }

    /// Appends the row of the token after `context`.
    ///
    /// The row is the model's row without its shift: like the logits of a language-model head, these are logprobs
    /// except for a constant. So only the patched tokens are computed, and the rest is one copy.
    pub(crate) fn append(&mut self, context: &[u32], rows: &mut BytesMut) {
        let shift = self.model.patches(context, &mut self.patches);
        let start = rows.len();
        rows.extend_from_slice(&self.base);
        let width = self.dtype.bytes();
        for &(token, logprob) in &self.patches {
            let at = start + token as usize * width;
            self.dtype.encode(logprob - shift, &mut rows[at..at + width]);
        }
    }
}
