//! TLS: the server's configuration, made from PEM files, and the client side for this program's own clients.
//!
//! [`mod@validity`] reads the period in which a certificate is valid. [`client`] has the client side.

pub mod client;
mod validity;

pub use validity::Validity;

use crate::reload::File;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The ALPN protocol name of HTTP/2, which gRPC runs on.
pub const H2: &[u8] = b"h2";

/// The flags that name the server's files, in the order of [`Files::paths`].
pub const FLAGS: [&str; 3] = ["--tls-cert", "--tls-key", "--tls-client-ca"];

/// The paths of the server's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// The server's certificate, followed by the intermediate ones up to its authority, PEM.
    pub cert: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub key: Option<PathBuf>,
    /// Certificates of authorities, PEM. One of them must have signed a client's certificate. `None`: clients need no
    /// certificate.
    pub client_ca: Option<PathBuf>,
}

impl Files {
    /// All paths, in the order that [`ServerTls::make`] takes. `None` without TLS.
    #[must_use]
    pub fn paths(&self) -> Option<Vec<PathBuf>> {
        let pair = [self.cert.clone()?, self.key.clone()?];
        Some(pair.into_iter().chain(self.client_ca.clone()).collect())
    }
}

/// What the server's end of a TLS connection needs.
#[derive(Debug)]
pub struct ServerTls {
    /// The configuration for handshakes.
    pub config: Arc<ServerConfig>,
    /// The period in which all certificates of the chain are valid.
    pub validity: Validity,
    /// The path of the file with the chain.
    pub cert: PathBuf,
}

impl ServerTls {
    /// Makes the configuration from certificate, key and, if clients need certificates, their authorities.
    ///
    /// # Errors
    /// Every mistake in the files, each with its flag, because one file may be used for several flags.
    pub fn make(files: &[File]) -> Result<Self, Vec<String>> {
        let [cert, key, authorities @ ..] = files else {
            return Err(vec!["certificate and key belong together".to_owned()]);
        };
        let mut problems = Vec::new();
        let mut note = |flag: &str, problem: String| problems.push(format!("{flag}: {problem}"));
        let [of_cert, of_key, of_authorities] = FLAGS;
        let chain = certificates(cert).and_then(|chain| Ok((validity(cert, &chain)?, chain)));
        let chain = chain.map_err(|problem| note(of_cert, problem));
        let private = private_key(key).map_err(|problem| note(of_key, problem));
        let roots = authorities.first().map(roots).transpose().map_err(|problem| note(of_authorities, problem));
        let (Ok((validity, chain)), Ok(private), Ok(roots)) = (chain, private, roots) else { return Err(problems) };
        let made = config(chain, private, roots);
        let (certs, keys) = (cert.path.display(), key.path.display());
        let wrong = |problem| vec![format!("{of_cert} and {of_key}: {certs} and {keys}: {problem}")];
        Ok(Self { config: Arc::new(made.map_err(wrong)?), validity, cert: cert.path.clone() })
    }
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Option<RootCertStore>,
) -> Result<ServerConfig, String> {
    let text = |error: tokio_rustls::rustls::Error| error.to_string();
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(text)?;
    let builder = match roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(text)?;
    config.alpn_protocols = vec![H2.to_vec()];
    // Sessions are not resumed. Connections live long, so resuming gains nothing, and a resuming client would not be
    // asked for its certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn certificates(file: &File) -> Result<Vec<CertificateDer<'static>>, String> {
    let path = file.path.display();
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&file.bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{path}: has no PEM certificate (BEGIN CERTIFICATE)")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{path}: is not PEM: {}", plainly(&error))),
    }
}

/// The parser's error, in which sections are bytes.
fn plainly(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("the line -----END {}----- is missing", String::from_utf8_lossy(end_marker))
        }
        error => error.to_string(),
    }
}

fn private_key(file: &File) -> Result<PrivateKeyDer<'static>, String> {
    let path = file.path.display();
    // The parser's error is dropped, because it might quote the file.
    let key = PrivateKeyDer::from_pem_slice(&file.bytes)
        .map_err(|_| format!("{path}: has no PEM private key without a password (BEGIN PRIVATE KEY)"))?;
    ring::default_provider().key_provider.load_private_key(key.clone_key()).map_err(|_| {
        format!("{path}: has a broken or unsupported private key; use RSA of 2,048 to 4,096 bits, ECDSA on P-256 or P-384, or Ed25519")
    })?;
    Ok(key)
}

fn roots(file: &File) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|error| format!("{}: is not a certificate authority: {error}", file.path.display()))?;
    }
    Ok(roots)
}

fn validity(file: &File, chain: &[CertificateDer<'_>]) -> Result<Validity, String> {
    let each = chain.iter().map(|certificate| Validity::of(certificate));
    let all = each.collect::<Option<Vec<_>>>().and_then(|each| each.into_iter().reduce(Validity::and));
    all.ok_or_else(|| format!("{}: has an entry that is not an X.509 certificate", file.path.display()))
}

#[cfg(test)]
mod tests;
