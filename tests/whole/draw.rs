//! Random complete parameters.

use crate::rows::Lcg;
pub use crate::whole::fields::FIELDS;
use croupier::proto::SamplingParams;

/// Random values, with tokens of a stream's vocabulary.
pub struct Draw {
    random: Lcg,
    pub vocab: u32,
}

impl Draw {
    pub fn new(seed: u64, vocab: u32) -> Self {
        let mut random = Lcg(seed);
        (0..4).for_each(|_| _ = random.next());
        Self { random, vocab }
    }

    pub fn number(&mut self) -> u64 {
        self.random.next() << 32 ^ self.random.next()
    }

    pub fn below(&mut self, n: u32) -> u32 {
        self.random.below(u64::from(n)) as u32
    }

    pub fn unit(&mut self) -> f32 {
        self.random.unit()
    }

    pub fn happens(&mut self, share: f32) -> bool {
        self.unit() < share
    }

    pub fn between(&mut self, least: f32, most: f32) -> f32 {
        least + self.unit() * (most - least)
    }

    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u32) as usize]
    }

    /// One of these edges, or any number between two bounds.
    pub fn edge(&mut self, edges: &[f32], (least, most): (f32, f32)) -> f32 {
        if self.happens(0.4) { self.one_of(edges) } else { self.between(least, most) }
    }

    /// A number between 0 and 1.
    pub fn share(&mut self) -> f32 {
        let small = self.between(1e-6, 1e-2);
        self.edge(&[0.0, 1.0, 0.5, 0.9, small], (0.0, 1.0))
    }

    /// A token, mostly one of the few that prompts are made of.
    pub fn token(&mut self) -> u32 {
        if self.happens(0.6) { self.below(8) } else { self.below(self.vocab) }
    }

    pub fn tokens(&mut self, least: u32, most: u32) -> Vec<u32> {
        let count = least + self.below(most - least + 1);
        (0..count).map(|_| self.token()).collect()
    }

    /// Tokens without repetition.
    pub fn once(&mut self, least: u32, most: u32) -> Vec<u32> {
        let mut tokens = self.tokens(least, most);
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }
}

/// The fields that are set, each with a seed for its value.
#[derive(Debug, Clone)]
pub struct Chosen {
    vocab: u32,
    fields: Vec<(usize, u64)>,
    /// A field, if any, that gets a value outside every range.
    spoiled: Option<(usize, u64)>,
}

/// Fields that accept any float, to set a bad value.
type Spoil = (&'static str, fn(&mut SamplingParams, f32));
const SPOILED: [Spoil; 12] = [
    ("temperature", |p, bad| p.temperature = Some(bad)),
    ("top_p", |p, bad| p.top_p = Some(bad)),
    ("repetition_penalty", |p, bad| p.repetition_penalty = Some(bad)),
    ("dynatemp_high", |p, bad| p.dynatemp_high = Some(bad)),
    ("smoothing_curve", |p, bad| p.smoothing_curve = Some(bad)),
    ("typical_p", |p, bad| p.typical_p = Some(bad)),
    ("xtc_threshold", |p, bad| p.xtc_threshold = Some(bad)),
    ("mirostat_tau", |p, bad| p.mirostat_tau = Some(bad)),
    ("adaptive_decay", |p, bad| p.adaptive_decay = Some(bad)),
    ("dry_base", |p, bad| p.dry_base = Some(bad)),
    ("min_eos_p", |p, bad| p.min_eos_p = Some(bad)),
    ("encoder_repetition_penalty", |p, bad| p.encoder_repetition_penalty = Some(bad)),
];
const BAD: [f32; 5] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -3e5, 3e5];

impl Chosen {
    /// Sets each field with this probability.
    pub fn new(draw: &mut Draw, density: f32) -> Self {
        let mut fields: Vec<(usize, u64)> = Vec::new();
        for at in 0..FIELDS.len() {
            if draw.happens(density) {
                fields.push((at, draw.number()));
            }
        }
        let spoiled = draw.happens(0.15).then(|| (draw.below(SPOILED.len() as u32) as usize, draw.number()));
        Self { vocab: draw.vocab, fields, spoiled }
    }

    pub fn params(&self) -> SamplingParams {
        let mut params = SamplingParams::default();
        for &(at, seed) in &self.fields {
            FIELDS[at].1(&mut params, &mut Draw::new(seed, self.vocab));
        }
        if let Some((at, seed)) = self.spoiled {
            SPOILED[at].1(&mut params, BAD[seed as usize % BAD.len()]);
        }
        params
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|&(at, _)| FIELDS[at].0)
    }

    /// Whether a field is set.
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|field| field == name) || self.spoiled.is_some_and(|(at, _)| SPOILED[at].0 == name)
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.spoiled.is_none()
    }

    pub fn is_spoiled(&self) -> bool {
        self.spoiled.is_some()
    }

    /// Unsets the field that an error named, or another one if that field is not set here.
    pub fn give_up(&mut self, named: &str, draw: &mut Draw) {
        let before = (self.fields.len(), self.is_spoiled());
        self.fields.retain(|&(at, _)| FIELDS[at].0 != named);
        self.spoiled = self.spoiled.filter(|&(at, _)| SPOILED[at].0 != named);
        if before == (self.fields.len(), self.is_spoiled()) && !self.fields.is_empty() {
            let some = draw.below(self.fields.len() as u32) as usize;
            self.fields.swap_remove(some);
        }
    }

    /// Splits off about half of the fields.
    pub fn halves(self, draw: &mut Draw) -> (Self, Self) {
        let (own, others) = self.fields.iter().partition(|_| draw.happens(0.5));
        (Self { fields: own, ..self.clone() }, Self { fields: others, spoiled: None, ..self })
    }

    pub fn none(vocab: u32) -> Self {
        Self { vocab, fields: Vec::new(), spoiled: None }
    }
}
