//! What chains of samplers need in addition to their steps.

use croupier::params::state::{Average, SamplerState};
use croupier::params::watermark::SynthidParams;
use croupier::sampling::chain::ChainStep;
use croupier::sampling::samplers::infill::Infill;
use croupier::sampling::watermark::tournament::{Table, Tournament};
use croupier::vocabulary::Vocabulary;
use std::sync::{Arc, LazyLock};

/// What samplers remember in the middle of a text, if there are any that remember something.
pub(crate) fn state(steps: &[ChainStep]) -> SamplerState {
    let any = |is: fn(&ChainStep) -> bool| steps.iter().any(is);
    SamplerState {
        mirostat_mu: any(|s| matches!(s, ChainStep::Mirostat { .. })).then_some(10.0),
        adaptive: any(|s| matches!(s, ChainStep::AdaptiveP { .. })).then_some(Average { sum: 5.0, weight: 10.0 }),
    }
}

/// A tournament with thirty layers.
pub(crate) fn tournament() -> Tournament<'static> {
    static KEYS: [u64; 30] = [
        654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468, 990, 966, 226, 324, 585, 118, 504, 421,
        521, 129, 669, 732, 225, 90, 960,
    ];
    static TABLE: LazyLock<Arc<Table>> = LazyLock::new(|| Table::of(&SynthidParams::new(vec![])));
    Tournament { context: 11, keys: &KEYS, table: &TABLE }
}

/// A vocabulary in which every token is a short text made of three letters.
pub(crate) fn infill() -> Infill<'static> {
    static TEXTS: LazyLock<Vocabulary> = LazyLock::new(|| {
        let text = |token: u32| (0..4).map(|place| b"abc"[token as usize / 3usize.pow(place) % 3]).collect();
        Vocabulary::new(&(0..1 << 17).map(|token| Some(text(token))).collect::<Vec<_>>(), b"")
    });
    Infill { vocabulary: &TEXTS, ends: &[2] }
}
