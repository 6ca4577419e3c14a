//! Looks into the files of certificate and tokens, so that their mistakes are told with all others.

use super::Config;
use crate::reload;
use crate::tls::ServerTls;
use crate::tokens::Tokens;

/// Adds what a server could not start with to `problems`.
pub(super) fn check(config: &Config, problems: &mut Vec<String>) {
    if let Some(paths) = config.tls.paths() {
        problems.extend(reload::check(&paths, ServerTls::make).err().into_iter().flatten());
    }
    if let Some(path) = &config.auth_token_file {
        let told = reload::check(std::slice::from_ref(path), Tokens::make).err().into_iter().flatten();
        problems.extend(told.map(|problem| format!("--auth-token-file: {problem}")));
    }
}
