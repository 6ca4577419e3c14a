//! What a setting is, and the macros with which the list of settings is written.

use super::{Config, values};
use std::ops::RangeInclusive;
use std::time::Duration;

/// One setting: a flag, an environment variable and a key of the file.
pub(super) struct Setting {
    /// The name of the flag, without the dashes.
    pub(super) name: &'static str,
    /// The placeholder for the value in `--help`.
    pub(super) value: &'static str,
    /// What the setting is, its unit, and when to change it.
    pub(super) help: &'static str,
    /// Parses a value and sets it.
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    /// Shows the current value.
    pub(super) show: fn(&Config) -> String,
}

impl Setting {
    /// The name of the environment variable.
    pub(super) fn env(&self) -> String {
        env_name(self.name)
    }

    /// The key in the file.
    pub(super) fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The file that this value tells the server to read. `None`: it names no file.
    pub(super) fn file<'t>(&self, value: &'t str) -> Option<&'t str> {
        let is_socket = self.name.ends_with("socket") || self.name == "uds";
        (self.value == "PATH" && !is_socket && value != self.default()).then_some(value)
    }

    /// Whether its values are text: paths, addresses, words. If a file has a number or a boolean there, it must be
    /// refused: it would be taken for a name that nobody meant.
    pub(super) fn is_text(&self) -> bool {
        !["N", "SIZE", "TIME", "SHARE", "GPU", "BOOL"].contains(&self.value)
    }

    /// How to write a text for this setting: the word that switches it off, if there is one, else its default.
    pub(super) fn hint(&self) -> String {
        match self.value {
            "ADDR" | "URL" => "write \"none\" to switch it off".to_owned(),
            "PATH" if self.default() != values::SHIPPED => "write \"none\" to switch it off".to_owned(),
            _ => format!("write a string in quotes, such as \"{}\"", self.default()),
        }
    }

    /// The default as text.
    pub(super) fn default(&self) -> String {
        (self.show)(&Config::default())
    }
}

/// The environment variable that belongs to a flag.
pub(super) fn env_name(flag: &str) -> String {
    format!("CROUPIER_{}", flag.replace('-', "_").to_uppercase())
}

/// A setting for a field of the configuration. The names that these macros use must be in scope where the list is.
macro_rules! setting {
    ($name:literal, $value:literal, $($field:ident).+, $read:expr, $show:expr, $help:expr) => {
        Setting {
            name: $name,
            value: $value,
            help: $help,
            set: |config, text| {
                config.$($field).+ = ($read)(text)?;
                Ok(())
            },
            show: |config| ($show)(&config.$($field).+),
        }
    };
}

/// Range of durations that must not be zero.
pub(super) const POSITIVE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3600);
/// Range of durations that may be zero.
pub(super) const ANY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);

/// HTTP/2: RFC 9113, section 6.9.1 and 6.5.2.
pub(super) const WINDOW: RangeInclusive<u64> = 65_535..=(1 << 31) - 1;
pub(super) const FRAME: RangeInclusive<u64> = 16_384..=(1 << 24) - 1;
/// gRPC's length prefix has 32 bits; 4 KiB is less than any useful step.
pub(super) const MESSAGE: RangeInclusive<u64> = 4096..=u32::MAX as u64;

/// A limit that is a count.
macro_rules! limit {
    ($name:literal, $field:ident, $range:expr, $help:literal) => {
        setting!($name, "N", limits.$field, |t| values::count(t, $range), ToString::to_string, $help)
    };
}

/// A limit or an HTTP/2 setting that is a size.
macro_rules! size {
    ($name:literal, $($field:ident).+, $type:ty, $range:expr, $help:literal) => {
        setting!($name, "SIZE", $($field).+, |t| values::size(t, $range).map(|n| n as $type), |n: &$type| show_size(*n as u64), $help)
    };
}

/// The path of a file, or none.
macro_rules! path {
    ($name:literal, $($field:ident).+, $help:literal) => {
        setting!($name, "PATH", $($field).+, values::file_path, |p: &Option<PathBuf>| show_option(p.as_ref().map(|p| p.display()), "none"), $help)
    };
}

/// A choice among several words.
macro_rules! word {
    ($name:literal, $value:literal, $field:ident, $words:expr, $help:literal) => {
        setting!($name, $value, $field, |t| values::one_of(t, $words), |w| values::word_of(w, $words), $help)
    };
}

macro_rules! switch {
    ($name:literal, $($field:ident).+, $help:literal) => {
        setting!($name, "BOOL", $($field).+, values::boolean, ToString::to_string, $help)
    };
}

macro_rules! duration {
    ($name:literal, $($field:ident).+, $range:expr, $help:literal) => {
        setting!($name, "TIME", $($field).+, |t| values::duration(t, $range), |d: &Duration| show_duration(*d), $help)
    };
}
