//! The client's side of TLS, for `croupier healthcheck`, `croupier bench` and the collector of traces.

use super::{certificates, private_key};
use crate::reload::{File, read_one};
use std::path::{Path, PathBuf};

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
    /// The first that cannot be read, or does not hold what it should, for people.
    pub fn read(&self) -> Result<Pems, String> {
        let ca = file(&self.ca)?;
        certificates(&ca)?;
        let identity = self.identity.as_ref().map(|(cert, key)| {
            let (cert, key) = (file(cert)?, file(key)?);
            certificates(&cert)?;
            private_key(&key)?;
            Ok::<_, String>((cert.bytes, key.bytes))
        });
        Ok(Pems { ca: ca.bytes, identity: identity.transpose()? })
    }
}

fn file(path: &Path) -> Result<File, String> {
    Ok(File { path: path.to_owned(), bytes: read_one(path)? })
}
