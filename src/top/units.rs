//! Numbers formatted for people.

use crate::output::grouped;

/// A rate: whole from 100 on, with one decimal below.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        r if r < 99.95 => format!("{r:.1}"),
        r => grouped(r.round() as u64),
    }
}

/// A duration in seconds, with three digits. From `highest` on, only a lower bound of it is known.
pub(super) fn time(seconds: Option<f64>, highest: f64) -> String {
    let Some(seconds) = seconds else { return "-".to_owned() };
    let (number, unit) = match seconds {
        s if s < 0.999_5e-3 => (s * 1e6, "us"),
        s if s < 0.999_5 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let decimals = match number {
        n if n < 9.995 => 2,
        n if n < 99.95 => 1,
        _ => 0,
    };
    format!("{}{number:.decimals$} {unit}", if seconds >= highest { ">=" } else { "" })
}

/// Bytes with a unit.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut number = bytes as f64;
    let mut unit = 0;
    while number >= 1023.95 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && number < 99.95);
    format!("{number:.decimals$} {}", UNITS[unit])
}

/// A duration in its two largest units: "3d04h", "2h03m", "1m05s", "12s".
pub(super) fn uptime(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// A share, in at most three characters: ".07", "1.0".
pub(super) fn share(share: Option<f64>) -> String {
    let Some(share) = share else { return "-".to_owned() };
    let text = format!("{share:.2}");
    text.strip_prefix('0').map_or("1.0".into(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.04, 99.94, 99.96, 12_345.6].map(rate), ["0", "0.0", "99.9", "100", "12,346"]);
        let times = [None, Some(7e-6), Some(1.234e-3), Some(0.9999e-3), Some(0.0255), Some(0.25), Some(1.0)];
        assert_eq!(
            times.map(|t| time(t, 1.0)),
            ["-", "7.00 us", "1.23 ms", "1.00 ms", "25.5 ms", "250 ms", ">=1.00 s"]
        );
        assert_eq!(
            [0, 1023, 1024, 5 << 20, 1 << 30, 1 << 50].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "5.0 MiB", "1.0 GiB", "1024 TiB"]
        );
        assert_eq!([0.0, 65.0, 7380.0, 273_600.0].map(uptime), ["0s", "1m05s", "2h03m", "3d04h"]);
        assert_eq!(
            [None, Some(0.0), Some(0.074), Some(0.996), Some(1.0)].map(share),
            ["-", ".00", ".07", "1.0", "1.0"]
        );
    }
}
