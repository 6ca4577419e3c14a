//! `croupier serve --check`: finds what a start would find wrong in settings and files, without starting. It does not
//! try addresses and devices.

use super::{Config, unknown_variables};
use crate::reload;
use crate::tls::{self, ServerTls};

/// What to say about a configuration without mistakes.
///
/// # Errors
/// What would keep the server from starting even so.
pub(super) fn told(config: &Config) -> Result<String, String> {
    config.traces.endpoint().map_err(|problem| format!("cannot send traces: {problem}"))?;
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = unknown_variables(names).into_iter();
    let ignored = unknown.map(|(name, near)| format!("{name} is not a setting and is ignored; did you mean {near}?\n"));
    let right = "the configuration is valid; nothing was started\n".to_owned();
    Ok(ignored.chain(certificate(config)).chain([right]).collect())
}

/// A note on a certificate that clients would refuse. A server starts with it all the same, because it may be renewed
/// while the server runs.
fn certificate(config: &Config) -> Option<String> {
    let tls = reload::check(&config.tls.paths()?, ServerTls::make).ok()?;
    let ([flag, ..], file) = (tls::FLAGS, tls.cert.display());
    Some(format!("{flag}: {file}: the certificate {}; clients will refuse it\n", tls.validity.complaint()?))
}
