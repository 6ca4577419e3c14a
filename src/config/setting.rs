//! One setting, whatever it is of.

use super::Config;

/// One setting: a flag, an environment variable and a key of the file.
pub(super) struct Setting {
    /// As the flag is written, without the dashes.
    pub(super) name: &'static str,
    /// Stands for the value in `--help`.
    pub(super) value: &'static str,
    /// What it is, its unit, and when to change it.
    pub(super) help: &'static str,
    /// Reads a value.
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    /// Shows the value in force.
    pub(super) show: fn(&Config) -> String,
}

impl Setting {
    /// The environment variable.
    pub(super) fn env(&self) -> String {
        env_name(self.name)
    }

    /// The key of the file.
    pub(super) fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The default, as it would be written.
    pub(super) fn default(&self) -> String {
        (self.show)(&Config::default())
    }
}

/// The environment variable of a flag.
pub(super) fn env_name(flag: &str) -> String {
    format!("CROUPIER_{}", flag.replace('-', "_").to_uppercase())
}
