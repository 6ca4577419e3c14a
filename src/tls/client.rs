//! The client's side of TLS, for `croupier healthcheck`, `croupier bench` and the collector of traces.

use super::{certificates, private_key};
use crate::reload::{File, read_one};
use std::path::{Path, PathBuf};

/// How a client speaks TLS: the files and the expected name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificates of authorities, PEM. One of them must have signed the server's certificate.
    pub ca: PathBuf,
    /// The client's own certificate and key, PEM, for a server that asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have. `None`: the name of the host that is called.
    pub name: Option<String>,
}

/// The content of these files.
#[derive(Debug)]
pub struct Pems {
    /// Certificates of authorities.
    pub ca: Vec<u8>,
    /// The client's certificate and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A message about the first file that cannot be read, or that does not hold what it should.
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
