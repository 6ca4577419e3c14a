//! The list of settings as documentation.

use super::settings::SETTINGS;

/// The table of settings in `docs/configuration.md`.
#[must_use]
pub fn reference_table() -> String {
    let mut table = "| flag | environment | file | default | meaning |\n|---|---|---|---|---|\n".to_owned();
    for s in SETTINGS {
        let (name, value, env, key, default) = (s.name, s.value, s.env(), s.key(), s.default());
        table += &format!("| `--{name} {value}` | `{env}` | `{key}` | `{default}` | {} |\n", s.help);
    }
    table
}
