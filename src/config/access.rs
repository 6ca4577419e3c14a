//! Flags for commands that connect to a server: TLS and a token.

use super::flags::{Reader, option};
use crate::dial::Access;
use crate::tls::client::ClientTls;
use clap::Arg;
use std::path::PathBuf;

const CA: &str = "tls-ca";
const CERT: &str = "tls-cert";
const KEY: &str = "tls-key";
const NAME: &str = "tls-name";
const TOKEN: &str = "token-file";

/// The clap definitions of the TLS flags.
pub(super) fn tls_flags() -> [Arg; 4] {
    [
        option(
            CA,
            "PATH",
            "Speak TLS on TCP; PEM file of certificate authorities, one of which must have signed the server's certificate",
        ),
        option(CERT, "PATH", "PEM file with the client certificate, for a server that asks for one; with --tls-key"),
        option(KEY, "PATH", "PEM file with the private key of --tls-cert"),
        option(NAME, "NAME", "Name that must be in the server's certificate [default: the host of --addr]"),
    ]
}

/// The flag for a token, which calls other than health need.
pub(super) fn token_flag() -> Arg {
    option(TOKEN, "PATH", "File with the token to send to a server that asks for one; the first token in it is used")
}

/// Reads these flags.
pub(super) fn read(reader: &mut Reader<'_>) -> Access {
    let mut path = |name| reader.read(name, None, |text| Ok(Some(PathBuf::from(text))));
    let (ca, cert, key, token_file) = (path(CA), path(CERT), path(KEY), path(TOKEN));
    let name = reader.read(NAME, None, |text| Ok(Some(text.to_owned())));
    if cert.is_some() != key.is_some() {
        reader.note(format!("--{CERT} and --{KEY} belong together; give both or neither"));
    }
    if ca.is_none() && (cert.is_some() || key.is_some() || name.is_some()) {
        reader.note(format!("--{CERT}, --{KEY} and --{NAME} need TLS, which --{CA} switches on"));
    }
    let access = Access { tls: ca.map(|ca| ClientTls { ca, identity: cert.zip(key), name }), token_file };
    check_files(&access, reader);
    access
}

/// Checks the files, so that their mistakes are reported together with all others. This does not depend on whether the
/// target needs them.
fn check_files(access: &Access, reader: &mut Reader<'_>) {
    if let Some(tls) = &access.tls {
        let authorities = ClientTls { identity: None, ..tls.clone() };
        match authorities.read() {
            Err(problem) => reader.note(format!("--{CA}: {problem}")),
            Ok(_) => tls.read().map_or_else(|problem| reader.note(format!("--{CERT}, --{KEY}: {problem}")), drop),
        }
    }
    access.token().map_or_else(|problem| reader.note(format!("--{TOKEN}: {problem}")), drop);
}
