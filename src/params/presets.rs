//! Presets: named sets of parameters, for fields that are left absent.

use super::{FieldError, SamplingParams};

/// Copies one parameter from one set to another.
pub type CopyParameter = fn(&SamplingParams, &mut SamplingParams);

/// A named set of parameters.
#[derive(Debug, Clone)]
pub struct Preset {
    /// As it is chosen by.
    pub name: String,
    /// What it is for.
    pub description: String,
    params: SamplingParams,
    copies: Vec<CopyParameter>,
}

impl Preset {
    /// A preset of those `params` that `copies` copy.
    #[must_use]
    pub fn new(name: String, description: String, params: SamplingParams, copies: Vec<CopyParameter>) -> Self {
        Self { name, description, params, copies }
    }

    /// How many tokens its sequence breakers have: they are prepared for each sequence that is opened with it.
    #[must_use]
    pub fn breaker_tokens(&self) -> usize {
        self.params.history.dry_sequence_breakers.iter().map(Vec::len).sum()
    }

    /// Sets its parameters; others stay.
    pub fn apply(&self, to: &mut SamplingParams) {
        self.copies.iter().for_each(|copy| copy(&self.params, to));
    }
}

/// The presets of a server, by name.
#[derive(Debug, Clone, Default)]
pub struct Presets(Vec<Preset>);

impl Presets {
    /// Most presets of a server.
    pub const MOST: usize = 256;

    /// These presets, in order of their names.
    #[must_use]
    pub fn new(mut presets: Vec<Preset>) -> Self {
        presets.sort_by(|a, b| a.name.cmp(&b.name));
        Self(presets)
    }

    /// The preset called `name`.
    ///
    /// # Errors
    /// There is none; the error lists those there are.
    pub fn get(&self, name: &str) -> Result<&Preset, FieldError> {
        self.0
            .iter()
            .find(|preset| preset.name == name)
            .ok_or_else(|| FieldError::new("preset", format!("is not the name of a preset; {}", self.listed())))
    }

    /// The names, or as many as suit an error.
    fn listed(&self) -> String {
        const LISTED: usize = 16;
        let names: Vec<&str> = self.0.iter().take(LISTED).map(|preset| preset.name.as_str()).collect();
        match self.0.len() {
            0 => "this server has none".to_owned(),
            count if count <= LISTED => format!("there are {}", names.join(", ")),
            count => format!("there are {} and {} more, which GetServerInfo tells", names.join(", "), count - LISTED),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Preset> {
        self.0.iter()
    }
}

/// Two sets are the same if they say the same of every parameter.
impl PartialEq for Presets {
    fn eq(&self, other: &Self) -> bool {
        let told = |preset: &Preset| {
            let mut params = SamplingParams::default();
            preset.apply(&mut params);
            (preset.name.clone(), preset.description.clone(), params)
        };
        self.0.iter().map(told).eq(other.0.iter().map(told))
    }
}
