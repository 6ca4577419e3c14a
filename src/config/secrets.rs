//! Checks the files of certificates and tokens, so that their mistakes are reported together with all others.

use super::Config;
use crate::reload;
use crate::tls::{self, ServerTls};
use crate::tokens::Tokens;

/// Adds to `problems` everything in these files that would keep a server from starting.
pub(super) fn check(config: &Config, problems: &mut Vec<String>) {
    if let Some(paths) = config.tls.paths() {
        let unread = tls::FLAGS.iter().zip(&paths).filter_map(|(flag, path)| {
            let problem = reload::read_kept(path).err()?;
            Some(format!("{flag}: {problem}"))
        });
        let unread: Vec<String> = unread.collect();
        match unread.is_empty() {
            true => problems.extend(reload::check(&paths, ServerTls::make).err().into_iter().flatten()),
            false => problems.extend(unread),
        }
    }
    if let Some(path) = &config.auth_token_file {
        let told = reload::check(std::slice::from_ref(path), Tokens::make).err().into_iter().flatten();
        problems.extend(told.map(|problem| format!("--auth-token-file: {problem}")));
    }
}
