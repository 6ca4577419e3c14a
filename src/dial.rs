//! Connections from this program's clients to a server: over TCP, plain or with TLS, or over a Unix socket.

use crate::tls::client::ClientTls;
use crate::tokens;
use std::error::Error;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

/// Most bytes in the path of a Unix socket: `sun_path` holds 108 including its final zero.
pub const LONGEST_SOCKET_PATH: usize = 107;

/// How a client gets in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// TLS, for TCP only; `None` means plain.
    pub tls: Option<ClientTls>,
    /// The file with the token to show. The first line with a token counts.
    pub token_file: Option<std::path::PathBuf>,
}

/// Shows a token with each call, if there is one.
#[derive(Debug, Clone, Default)]
pub struct Token(Option<MetadataValue<Ascii>>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

impl Access {
    /// Reads the token to show.
    ///
    /// # Errors
    /// When the file cannot be read or has no token, with a message for people.
    pub fn token(&self) -> Result<Token, String> {
        let Some(path) = &self.token_file else { return Ok(Token(None)) };
        let text = crate::reload::read_one(path)?;
        let value = tokens::lines(&text).next().and_then(|(_, token)| {
            let mut value = MetadataValue::try_from([b"Bearer ", token].concat()).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        value.map(|value| Token(Some(value))).ok_or_else(|| format!("{}: has no token", path.display()))
    }

    /// Checks that TLS, if it is asked for, is spoken at `address`: `host:port`, `unix:PATH` or the URL of an admin
    /// port. Whoever asks for TLS wants to know who answers, which a plain answer would not show.
    ///
    /// # Errors
    /// What to do, as a message for people.
    pub fn suits(&self, address: &str) -> Result<(), String> {
        let is_plain = address.starts_with("unix:") || address.starts_with("http:");
        match &self.tls {
            Some(_) if is_plain => Err(format!(
                "--tls-ca is given, but the target {address} does not speak TLS; give --addr HOST:PORT, or leave --tls-ca out"
            )),
            _ => Ok(()),
        }
    }

    /// The endpoint of the server at `address`, `host:port` or `unix:PATH`.
    ///
    /// # Errors
    /// When the address or the files are wrong, with a message for people.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint, String> {
        self.suits(address)?;
        // tonic reads unix:PATH itself, and sends "localhost" as the authority there, because h2 refuses an authority
        // with slashes.
        let (uri, tls) = match (&self.tls, address.starts_with("unix:")) {
            (_, true) => (address.to_owned(), None),
            (None, false) => (format!("http://{address}"), None),
            (Some(tls), false) => (format!("https://{address}"), Some(tls)),
        };
        let endpoint = Endpoint::from_shared(uri).map_err(|error| causes(&error))?;
        let Some(tls) = tls else { return Ok(endpoint) };
        let name = tls.name.clone().or_else(|| host(&endpoint)).unwrap_or_default();
        let pems = tls.read()?;
        let config = ClientTlsConfig::new().domain_name(name).ca_certificate(Certificate::from_pem(pems.ca));
        let config = match pems.identity {
            Some((cert, key)) => config.identity(Identity::from_pem(cert, key)),
            None => config,
        };
        endpoint.tls_config(config).map_err(|error| causes(&error))
    }
}

/// The host in the URI. An IPv6 address has brackets in a URI, but none in a certificate.
fn host(endpoint: &Endpoint) -> Option<String> {
    let host = endpoint.uri().host()?;
    Some(host.trim_start_matches('[').trim_end_matches(']').to_owned())
}

/// An error and its causes, because tonic's own text is only "transport error".
#[must_use]
pub fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some errors already repeat their cause's text.
        if !text.ends_with(&cause_text) {
            text += &format!(": {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Signs that a server ended a connection because it could not, or would not, speak with this client. The server's
/// alert may be read as a frame, or be lost with the connection.
const CUT: [&str; 4] = ["FRAME_SIZE_ERROR", "connection closed", "broken pipe", "reset"];

/// Sign of a server that does not speak TLS: its first frame is read as a TLS record.
const PLAIN: &str = "InvalidContentType";

/// Sign of a server that speaks HTTP but not gRPC: its answer is read as a message.
const NO_GRPC: &str = "invalid compression flag";

/// What to do about a connection that fails because only one side speaks TLS, or because a client does not show what
/// the server asks for.
#[must_use]
pub fn hint(why: &str, access: &Access) -> &'static str {
    let has = |signs: &[&str]| signs.iter().any(|sign| why.contains(sign));
    match &access.tls {
        _ if has(&[NO_GRPC]) => "; the server does not speak gRPC there: is this the admin port?",
        Some(_) if has(&[PLAIN]) => "; the server does not speak TLS there: leave --tls-ca out",
        None if has(&CUT) => {
            "; if the server speaks TLS, give --tls-ca; or it has no room for more connections (max_connections)"
        }
        Some(_) if has(&["CaUsedAsEndEntity"]) => {
            "; the server presents an authority's own certificate: give it a server certificate signed by that authority"
        }
        Some(_) if has(&["UnknownIssuer", "BadSignature"]) => "; the server's certificate is not signed by --tls-ca",
        Some(_) if has(&["NotValidForName", "not valid for name"]) => {
            "; the server's certificate is for another name: give --tls-name"
        }
        Some(tls) if tls.identity.is_none() && (has(&["CertificateRequired"]) || has(&CUT)) => {
            "; if the server asks for a certificate, give --tls-cert and --tls-key"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_not_left_out_in_silence() {
        let tls = Some(ClientTls { ca: "ca.pem".into(), identity: None, name: None });
        let access = Access { tls, token_file: None };
        for plain in ["unix:/tmp/s", "http://h:1"] {
            let told = access.suits(plain).expect_err("a mistake");
            assert!(told.contains("does not speak TLS") && told.contains(plain), "{told}");
            assert_eq!(Access::default().suits(plain), Ok(()));
        }
        assert_eq!(access.suits("h:1"), Ok(()));
        assert!(access.endpoint("unix:/tmp/s").is_err() && Access::default().endpoint("unix:/tmp/s").is_ok());
    }

    #[test]
    fn what_fails_is_told_what_to_do() {
        let tls = Some(ClientTls { ca: "ca.pem".into(), identity: None, name: None });
        let (plain, tls) = (Access::default(), Access { tls, ..Access::default() });
        // In rustls's words, even if only the text of a cause is left.
        let named = "invalid peer certificate: certificate not valid for name \"localhost\"";
        assert!(hint(named, &tls).contains("--tls-name"));
        assert!(
            hint("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", &tls).contains("own certificate")
        );
        assert!(hint("h2 protocol error: FRAME_SIZE_ERROR", &plain).contains("--tls-ca"));
        assert!(hint("received corrupt message of type InvalidContentType", &tls).contains("leave --tls-ca out"));
        let page = "protocol error: received message with invalid compression flag: 110 (valid flags are 0 and 1)";
        assert!(hint(page, &plain).contains("admin port") && hint(page, &tls).contains("admin port"));
        assert_eq!(hint("Connection refused", &plain), "");
    }
}
