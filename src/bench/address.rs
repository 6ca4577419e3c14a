//! The address of a server, as people write it.

use super::Transport;
use crate::config::Config;
use crate::dial::LONGEST_SOCKET_PATH;
use std::path::PathBuf;

/// `unix:PATH` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(String),
    /// The path of a Unix socket.
    Uds(PathBuf),
}

impl Address {
    /// The kind of socket of this address.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self {
            Address::Tcp(_) => Transport::Tcp,
            Address::Uds(_) => Transport::Uds,
        }
    }
}

impl Default for Address {
    /// The address where `croupier serve` listens by default.
    fn default() -> Self {
        let listen = Config::default().listen.map(|listen| listen.to_string());
        Address::Tcp(listen.unwrap_or_default())
    }
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // gRPC's own naming also allows unix:///absolute.
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path.len() {
                _ if path.starts_with('@') => Err(format!("\"{path}\" is an abstract socket, which is not supported")),
                0 => Err("unix: needs a path".to_owned()),
                1..=LONGEST_SOCKET_PATH => Ok(Address::Uds(path.into())),
                long => Err(format!("\"{path}\" has {long} bytes; a socket path has at most {LONGEST_SOCKET_PATH}")),
            };
        }
        let text = text.strip_prefix("http://").unwrap_or(text);
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Address::Tcp(text.to_owned())),
            _ if text.starts_with(['/', '.']) => {
                Err(format!("\"{text}\" is not a valid address; for a socket write unix:{text}, else HOST:PORT"))
            }
            _ => Err(format!("\"{text}\" is not a valid address; use HOST:PORT or unix:PATH")),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => f.write_str(address),
            Address::Uds(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_read_and_nonsense_is_refused() {
        for (text, read) in [
            ("unix:/run/s", Ok(Address::Uds("/run/s".into()))),
            ("unix:///run/s", Ok(Address::Uds("/run/s".into()))),
            ("localhost:1", Ok(Address::Tcp("localhost:1".into()))),
            ("http://[::1]:50051", Ok(Address::Tcp("[::1]:50051".into()))),
        ] {
            assert_eq!(text.parse(), read);
        }
        let (fits, long) = (format!("unix:{}", "x".repeat(107)), format!("unix:{}", "x".repeat(108)));
        assert!(fits.parse::<Address>().is_ok());
        let told = "/run/s".parse::<Address>().unwrap_err();
        assert!(told.contains("for a socket write unix:/run/s, else HOST:PORT"), "{told}");
        for text in [&long, "", "unix:", "unix:@s", "host", "host:", ":1", "host:70000"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
