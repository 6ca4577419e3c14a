//! The client's side of TLS, for `croupier healthcheck` and `croupier bench`.

use crate::reload::read_one;
use std::path::PathBuf;

/// How a client speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// Authorities one of which must have signed the server's certificate, PEM.
    pub ca: PathBuf,
    /// The client's own certificate and key, PEM, for a server that asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that must be in the server's certificate; `None`: the host that is called.
    pub name: Option<String>,
}

/// The same, with the files read.
#[derive(Debug)]
pub struct Pems {
    /// Authorities.
    pub ca: Vec<u8>,
    /// Certificate and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// The first that cannot be read, for people.
    pub fn read(&self) -> Result<Pems, String> {
        let identity = self.identity.as_ref().map(|(cert, key)| Ok::<_, String>((read_one(cert)?, read_one(key)?)));
        Ok(Pems { ca: read_one(&self.ca)?, identity: identity.transpose()? })
    }
}
