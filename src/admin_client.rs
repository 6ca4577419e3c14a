//! The client of the admin port, for `croupier healthcheck` and `croupier top`: one short request over plain HTTP, for
//! which an HTTP client library would be too much.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer of the admin port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code, such as 200.
    pub status: u16,
    /// The first line, such as `HTTP/1.0 200 OK`.
    pub status_line: String,
    /// The text after the headers.
    pub body: String,
}

/// The `host:port` in an address of the admin port, as people write it: with or without `http://`, with or without a
/// slash or the name of a page at the end.
///
/// # Errors
/// When the text is something else, with a message for people.
pub fn authority(url: &str) -> Result<&str, String> {
    let wrong = || format!("\"{url}\" is not the address of an admin port; write HOST:PORT or http://HOST:PORT");
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let host_and_port = rest.strip_suffix("/metrics").unwrap_or(rest).trim_end_matches('/');
    match host_and_port.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok() => {
            Ok(host_and_port)
        }
        _ => Err(wrong()),
    }
}

/// Fetches a page of the admin port at `authority`. With its headers, the answer may have `most` bytes.
///
/// # Errors
/// What the system says; `InvalidData` when the answer is not HTTP, is too long, or was cut.
pub async fn get(authority: &str, path: &str, most: u64) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(authority).await?;
    // With HTTP/1.0 the answer comes in one piece, and the connection ends with it.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(most + 1).read_to_end(&mut answer).await?;
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    if answer.len() as u64 > most {
        return Err(wrong("the answer is too long"));
    }
    if answer.is_empty() {
        return Err(wrong("the connection was closed without an answer"));
    }
    read(&String::from_utf8(answer).map_err(|_| wrong("the answer is not text"))?).map_err(wrong)
}

fn read(answer: &str) -> Result<Answer, &'static str> {
    const NOT_HTTP: &str = "the answer is not HTTP";
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(NOT_HTTP)?;
    let status_line = head.lines().next().unwrap_or_default();
    let status = status_line.strip_prefix("HTTP/").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let length = head.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    });
    if length.is_some_and(|length| length != body.len()) {
        return Err("the answer was cut short");
    }
    Ok(Answer { status: status.ok_or(NOT_HTTP)?, status_line: status_line.to_owned(), body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for url in ["h:9", "http://h:9", "http://h:9/", "http://h:9/metrics"] {
            assert_eq!(authority(url), Ok("h:9"), "{url}");
        }
        assert_eq!(authority("http://[::1]:9464"), Ok("[::1]:9464"));
        for url in ["", "h", "h:", ":1", "https://h:9", "http://h:9/other", "unix:/run/s", "h:70000"] {
            assert!(authority(url).is_err(), "{url}");
        }
    }

    #[test]
    fn answers_are_whole_or_refused() {
        let answer = |body: &str| read(&format!("HTTP/1.0 503 No\r\nContent-Length: 3\r\n\r\n{body}"));
        let whole = Answer { status: 503, status_line: "HTTP/1.0 503 No".to_owned(), body: "abc".to_owned() };
        assert_eq!(answer("abc"), Ok(whole));
        assert_eq!(answer("ab"), Err("the answer was cut short"));
        for other in ["", "SSH-2.0\r\n\r\n", "HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK\r\n"] {
            assert_eq!(read(other), Err("the answer is not HTTP"), "{other:?}");
        }
    }
}
