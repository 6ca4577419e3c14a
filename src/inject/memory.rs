//! Checks whether the sidecar's memory limit is enough for what its settings allow. The sum is the one that the chart's
//! notes show. It counts the incoming messages of one worker.

use super::sidecar::Sidecar;
use crate::config::{self, Config};

/// A setting that bounds memory: the name of its flag, and its default.
type Bound = (&'static str, fn(&Config) -> usize);

const BOUNDS: [Bound; 6] = [
    ("max-state-bytes", |config| config.limits.max_state_bytes),
    ("max-bytes-in-flight", |config| config.limits.max_bytes_in_flight),
    ("max-region-bytes", |config| config.limits.max_region_bytes),
    ("http2-connection-window", |config| config.http2.connection_window as usize),
    ("max-message-bytes", |config| config.limits.max_message_bytes),
    (SHARDS, |config| config.limits.max_shard_bytes),
];
/// This setting does not count if no ranks may attach, because then there are no shards.
const SHARDS: &str = "max-shard-bytes";
/// What the program takes in addition to these.
const PROGRAM: u64 = 64 << 20;

/// The warning about a limit that is too low. `None`: it is high enough, or cannot be read.
pub(super) fn warning(sidecar: &Sidecar, limit: &str) -> Option<String> {
    let defaults = Config::default();
    let bound = |(name, default): &Bound| {
        sidecar.setting(name).and_then(config::bytes).unwrap_or_else(|| default(&defaults) as u64)
    };
    let has_shards = sidecar.setting("max-attached-ranks") != Some("0");
    let bounds: Vec<Bound> = BOUNDS.into_iter().filter(|(name, _)| has_shards || *name != SHARDS).collect();
    let sum = bounds.iter().map(bound).fold(PROGRAM, u64::saturating_add);
    (quantity(limit)? < sum as f64).then(|| {
        format!(
            "the memory limit of {limit} is less than the {} MiB that {} and the program add up to: under load it would be \
             killed instead of refusing work. Raise the limit, or lower one of these with --setting",
            sum >> 20,
            bounds.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        )
    })
}

/// Parses a Kubernetes quantity, such as bytes or cores.
pub(crate) fn quantity(text: &str) -> Option<f64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let decimal =
        ["", "k", "M", "G", "T", "P", "E"].iter().position(|known| *known == unit).map(|n| 1e3f64.powi(n as i32));
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
        .iter()
        .position(|known| *known == unit)
        .map(|n| 1024f64.powi(n as i32 + 1));
    let exponent = || unit.strip_prefix(['e', 'E'])?.parse::<i32>().ok().map(|n| 10f64.powi(n));
    let small = ["n", "u", "m"].iter().position(|known| *known == unit).map(|n| 1e3f64.powi(n as i32 - 3));
    let factor = decimal.or(binary).or(small).or_else(exponent)?;
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::super::InjectArgs;
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        for (text, expected) in [
            ("1Gi", 1073741824.0),
            ("1.5Gi", 1610612736.0),
            ("2e9", 2e9),
            ("512M", 512e6),
            ("1Pi", 1125899906842624.0),
            ("7", 7.0),
            ("+7", 7.0),
            ("2000000000n", 2.0),
            ("3000000u", 3.0),
        ] {
            assert_eq!(quantity(text), Some(expected), "{text}");
        }
        assert_eq!((quantity("1000m"), quantity("x"), quantity("1Qi")), (Some(1.0), None, None));
    }

    #[test]
    fn a_limit_below_the_settings_is_warned_of() {
        let with = |settings: &[(&str, &str)]| {
            let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            Sidecar::new(&InjectArgs { settings, ..InjectArgs::default() })
        };
        // The chart's 1 GiB and 256 MiB, the defaults of 512 MiB for regions, 96 MiB for incoming messages and 256 MiB
        // for shards, and the program.
        assert!(warning(&with(&[]), "2207Mi").is_some_and(|text| text.contains("2208 MiB")));
        assert_eq!(warning(&with(&[]), "2208Mi"), None);
        let alone = ("max-attached-ranks", "0");
        assert!(
            warning(&with(&[alone]), "1951Mi").is_some_and(|text| text.contains("max-message-bytes and the program"))
        );
        assert_eq!(warning(&with(&[alone]), "1952Mi"), None);
        assert_eq!(warning(&with(&[alone, ("max-region-bytes", "0"), ("max-state-bytes", "192MiB")]), "608Mi"), None);
    }
}
