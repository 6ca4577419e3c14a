//! How single values are parsed from text and shown as text.

use super::{BackendChoice, LogFormat, RegionSocket};
use crate::backend::cpu::Level;
use crate::backend::cuda::HostRows;
use crate::dial::LONGEST_SOCKET_PATH;
use crate::region;
use std::net::{Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// The word that switches an address or a path off.
const NONE: &str = "none";
/// The word for the presets that come with the program.
pub(super) const SHIPPED: &str = "shipped";
/// The word that leaves a choice to the server.
const AUTO: &str = "auto";
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A whole number in a range.
pub(super) fn count<T>(text: &str, range: RangeInclusive<T>) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let wrong = || format!("\"{text}\" is not a whole number in {} ..= {}", range.start(), range.end());
    text.parse().ok().filter(|n| range.contains(n)).ok_or_else(wrong)
}

/// A size in bytes, such as "65536", "64KiB", "16MiB" or "1GiB".
pub(super) fn size(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let (digits, unit) = split_unit(text);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kib" => Some(KIB),
        "m" | "mib" => Some(MIB),
        "g" | "gib" => Some(GIB),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(factor).and_then(|(n, f)| n.checked_mul(f));
    bytes.filter(|n| range.contains(n)).ok_or_else(|| {
        // One byte less than a round number is meant as that number.
        let (low, below) = (show_size(*range.start()), range.end().saturating_add(1));
        let high = if below.is_multiple_of(GIB) {
            format!("< {}", show_size(below))
        } else {
            format!("= {}", show_size(*range.end()))
        };
        format!("\"{text}\" is not a size in {low} ..{high}; write bytes, or a number with KiB, MiB or GiB")
    })
}

/// A duration, such as "250ms", "5s", "2m" or a number of seconds.
pub(super) fn duration(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, String> {
    let (digits, unit) = split_unit(text);
    let millis = match unit {
        "ms" => Some(1.0),
        "" | "s" => Some(1e3),
        "m" | "min" => Some(6e4),
        "h" => Some(3.6e6),
        _ => None,
    };
    let parsed =
        digits.parse::<f64>().ok().zip(millis).and_then(|(n, m)| Duration::try_from_secs_f64(n * m / 1e3).ok());
    parsed.filter(|d| range.contains(d)).ok_or_else(|| {
        let (low, high) = (show_duration(*range.start()), show_duration(*range.end()));
        format!("\"{text}\" is not a duration in {low} ..= {high}; write for example 500ms, 5s or 2m")
    })
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    (digits, unit.trim_start())
}

/// An IP address and port, or none.
pub(super) fn address(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == NONE {
        return Ok(None);
    }
    // localhost is accepted because it needs no resolver and people often type it.
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric.as_deref().unwrap_or(text).parse().map(Some).map_err(|_| {
        format!(
            "\"{text}\" is not an address; write IP:PORT such as 127.0.0.1:50051 or [::]:50051, or none (names are not \
             resolved, except localhost)"
        )
    })
}

/// The path of a Unix socket, or none. It may also be written as clients write it: `unix:PATH` or `unix:///PATH`.
pub(super) fn socket_path(text: &str) -> Result<Option<PathBuf>, String> {
    if text == NONE {
        return Ok(None);
    }
    no_switch(text, NONE)?;
    let text = text.strip_prefix("unix:").map_or(text, |path| path.strip_prefix("//").unwrap_or(path));
    if text.starts_with('@') || text.starts_with("unix-abstract:") {
        return Err(format!("\"{text}\" is an abstract socket, which is not supported; write a path, or {NONE}"));
    }
    if text.is_empty() || text.len() > LONGEST_SOCKET_PATH {
        return Err(format!(
            "\"{text}\" has {} bytes; a socket path must have 1 ..= {LONGEST_SOCKET_PATH}",
            text.len()
        ));
    }
    let path = PathBuf::from(text);
    match path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) if !dir.is_dir() => Err(format!("the directory {} does not exist; create it first", dir.display())),
        _ => Ok(Some(path)),
    }
}

/// The socket at which shared memory is handed out: auto, none, or the path of a Unix socket.
pub(super) fn region_socket(text: &str) -> Result<RegionSocket, String> {
    if text == AUTO {
        return Ok(RegionSocket::Auto);
    }
    match socket_path(text)? {
        None => Ok(RegionSocket::Off),
        Some(_) if !region::IS_SUPPORTED => Err("shared memory needs Linux; write none".to_owned()),
        Some(path) => Ok(RegionSocket::At(path)),
    }
}

pub(super) fn show_region_socket(socket: &RegionSocket) -> String {
    match socket {
        RegionSocket::Auto => AUTO.to_owned(),
        RegionSocket::Off => NONE.to_owned(),
        RegionSocket::At(path) => path.display().to_string(),
    }
}

/// The path of a file, or none.
pub(super) fn file_path(text: &str) -> Result<Option<PathBuf>, String> {
    match text {
        "" => Err("is empty; write a path, or none".to_owned()),
        NONE => Ok(None),
        path => no_switch(path, NONE).map(|()| Some(path.into())),
    }
}

/// The path of a file of presets, or the word for those that come with the program.
pub(super) fn presets(text: &str) -> Result<Option<PathBuf>, String> {
    match text {
        "" => Err(format!("is empty; write a path, or {SHIPPED}")),
        SHIPPED => Ok(None),
        path => no_switch(path, SHIPPED).map(|()| Some(path.into())),
    }
}

/// Refuses words that were meant to switch something on or off and are not paths. `instead` is what to write instead.
fn no_switch(text: &str, instead: &str) -> Result<(), String> {
    let word = text.to_lowercase();
    if boolean(&word).is_err() && word != NONE {
        return Ok(());
    }
    Err(format!("\"{text}\" is not a path; write {instead}, or ./{text} for a file with that name"))
}

/// Where traces are sent, or none.
pub(super) fn collector(text: &str) -> Result<Option<String>, String> {
    if text == NONE {
        return Ok(None);
    }
    let url = text.strip_suffix('/').unwrap_or(text);
    let address = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let parts = address.and_then(|address| address.rsplit_once(':'));
    // An IPv6 address is written in brackets.
    let is_host = |host: &str| match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(numeric) => numeric.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c)),
    };
    match parts {
        // The part before an @ may be a password, which must not appear in a log.
        _ if text.contains('@') => {
            Err("has a user name or password before an @, which is not sent to a collector; write http://HOST:PORT"
                .to_owned())
        }
        Some((host, port)) if is_host(host) && port.parse::<NonZeroU16>().is_ok() => Ok(Some(url.to_owned())),
        _ => Err(format!(
            "\"{text}\" is not a collector address; write http://HOST:PORT, such as http://localhost:4317, or none"
        )),
    }
}

/// A share, 0 to 1.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("\"{text}\" is not a share; write a number in 0 ..= 1, such as 0.01"))
}

/// A boolean.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("\"{text}\" is neither true nor false")),
    }
}

/// The value that a word stands for.
pub(super) fn one_of<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    words.iter().find(|(word, _)| *word == text).map(|&(_, value)| value).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|&(word, _)| word).collect();
        format!("\"{text}\" is not one of {}", known.join(", "))
    })
}

/// The word that stands for a value.
pub(super) fn word_of<T: PartialEq>(value: &T, words: &[(&str, T)]) -> String {
    words.iter().find(|(_, v)| v == value).map_or_else(String::new, |(word, _)| (*word).to_owned())
}

/// A GPU's index, or its UUID as nvidia-smi shows it.
pub(super) fn device(text: &str) -> Result<String, String> {
    let is_index = text.len() <= 4 && text.parse::<u16>().is_ok();
    let is_uuid = text.len() == 40
        && ["GPU-", "MIG-"]
            .iter()
            .find_map(|kind| text.strip_prefix(kind))
            .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_hexdigit() || c == '-'));
    if is_index || is_uuid {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "\"{text}\" is not a device; write an index such as 0, or a UUID as nvidia-smi -L shows it, GPU-... or MIG-..."
        ))
    }
}

/// Words for instruction-set levels.
pub(super) const SIMD: [(&str, Option<Level>); 5] = [
    ("auto", None),
    (Level::Avx512Amd.name(), Some(Level::Avx512Amd)),
    (Level::Avx512.name(), Some(Level::Avx512)),
    (Level::Avx2.name(), Some(Level::Avx2)),
    (Level::Portable.name(), Some(Level::Portable)),
];
/// Words for [`HostRows`].
pub(super) const HOST_ROWS: [(&str, HostRows); 2] = [("cpu", HostRows::Cpu), ("cuda", HostRows::Cuda)];

/// Words for [`BackendChoice`].
pub(super) const BACKEND: [(&str, BackendChoice); 3] =
    [("cpu", BackendChoice::Cpu), ("cuda", BackendChoice::Cuda), ("auto", BackendChoice::Auto)];
/// Words for [`LogFormat`].
pub(super) const LOG_FORMAT: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

/// An instruction-set level that this CPU has.
pub(super) fn simd(text: &str) -> Result<Option<Level>, String> {
    match one_of(text, &SIMD)? {
        Some(level) if !level.is_available() => Err(format!("this CPU has no {}; write auto", level.name())),
        choice => Ok(choice),
    }
}

/// A filter of log lines.
pub(super) fn log_level(text: &str) -> Result<String, String> {
    // The filter would take an empty text for "error".
    if text.trim().is_empty() {
        return Err("is empty; write for example info, or info,croupier=debug".to_owned());
    }
    // The filter would take a lone word that is no level for a target, so that a typo would silence everything.
    let is_level =
        |word: &&str| word.contains(['=', '[', ':']) || word.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    if let Some(word) = text.split(',').map(str::trim).find(|word| !is_level(word)) {
        let near = super::file::nearest(word, ["off", "error", "warn", "info", "debug", "trace"].into_iter());
        let hint = near.map_or_else(
            || "write for example info, or info,croupier=debug".to_owned(),
            |near| format!("did you mean {near}?"),
        );
        return Err(format!("\"{word}\" is not a log level; {hint}"));
    }
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!("\"{text}\" is not a log filter; write for example info, or info,croupier=debug")),
    }
}

pub(super) fn show_size(bytes: u64) -> String {
    for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

pub(super) fn show_duration(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        return format!("{}s", duration.as_secs());
    }
    format!("{}ms", duration.as_millis())
}

pub(super) fn show_option<T: std::fmt::Display>(value: Option<T>, absent: &str) -> String {
    value.map_or_else(|| absent.to_owned(), |v| v.to_string())
}
