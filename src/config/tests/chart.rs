//! The chart refuses the values that the server refuses. Its ranges are in ranges.yaml and relations.yaml in
//! helm/croupier/files, which its templates/validate.yaml reads.

use super::settings::SETTINGS;
use super::*;
use std::time::Duration;

const RANGES: &str = include_str!("../../../helm/croupier/files/ranges.yaml");
const RELATIONS: &str = include_str!("../../../helm/croupier/files/relations.yaml");
const SCHEMA: &str = include_str!("../../../helm/croupier/values.schema.json");
/// Settings that the chart derives from its own values, which are in seconds.
const OWN: [(&str, &str); 2] = [("drain-timeout", "drainTimeoutSeconds"), ("lame-duck", "lameDuckSeconds")];

/// Each setting's key, least and most value, from lines `  key: [least, most]` of the file.
fn ranges() -> Vec<(&'static str, &'static str, &'static str)> {
    let entries = RANGES.lines().filter(|line| line.starts_with("  "));
    let entries = entries.map(|line| line.trim().strip_suffix(']').and_then(|line| line.split_once(": [")));
    let entries = entries.map(|entry| entry.and_then(|(key, range)| Some((key, range.split_once(", ")?))));
    entries.map(|entry| entry.expect("key: [least, most]")).map(|(key, (least, most))| (key, least, most)).collect()
}

/// The values just outside of this range: one item, byte or millisecond less than the least and more than the most.
fn around(kind: &str, least: &str, most: &str) -> (Option<String>, String) {
    let millis = |text| {
        let any = Duration::ZERO..=Duration::MAX;
        values::duration(text, any).expect("a duration").as_millis() as u64
    };
    let number = |text| match kind {
        "TIME" => millis(text),
        _ => values::size(text, 0..=u64::MAX).expect("a number"),
    };
    let unit = if kind == "TIME" { "ms" } else { "" };
    (number(least).checked_sub(1).map(|below| format!("{below}{unit}")), format!("{}{unit}", number(most) + 1))
}

#[test]
fn the_charts_ranges_are_the_servers() {
    let ranges = ranges();
    for setting in SETTINGS.iter().filter(|s| ["N", "SIZE", "TIME"].contains(&s.value)) {
        if OWN.iter().any(|(name, _)| *name == setting.name) {
            continue;
        }
        let range = ranges.iter().find(|(key, ..)| *key == setting.key());
        let &(key, least, most) = range.unwrap_or_else(|| panic!("ranges.yaml has no {}", setting.key()));
        let takes = |text: &str| (setting.set)(&mut Config::default(), text).is_ok();
        let (below, above) = around(setting.value, least, most);
        assert!(takes(least) && takes(most), "{key}: the server refuses {least} or {most}");
        assert!(!below.is_some_and(|below| takes(&below)), "{key}: the server takes less than {least}");
        assert!(!takes(&above), "{key}: the server takes more than {most}");
    }
    for (key, ..) in ranges {
        assert!(SETTINGS.iter().any(|s| s.key() == key), "{key} is no setting");
    }
}

#[test]
fn so_are_those_of_its_own_values() {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
    for (name, value) in OWN {
        let setting = SETTINGS.iter().find(|s| s.name == name).expect("a setting");
        let most = schema["properties"][value]["maximum"].as_u64().expect("a maximum");
        let takes = |seconds: u64| (setting.set)(&mut Config::default(), &format!("{seconds}s")).is_ok();
        assert!(takes(most) && !takes(most + 1), "{value}");
    }
}

#[test]
fn so_are_its_relations() {
    let pairs = RELATIONS.lines().filter(|line| line.starts_with("- "));
    let pairs = pairs.map(|line| line.trim_start_matches("- [").trim_end_matches(']').split_once(", "));
    for (lower, upper) in pairs.map(|pair| pair.expect("- [lower, upper]")) {
        let setting = SETTINGS.iter().find(|s| s.key() == lower).unwrap_or_else(|| panic!("{lower} is no setting"));
        let most = values::size(&setting.default(), 0..=u64::MAX).expect("a number");
        let flag = |key: &str, value: u64| format!("--{}={value}", key.replace('_', "-"));
        config(&["serve", &flag(lower, most), &flag(upper, most)], &[]);
        let told = mistakes(&["serve", &flag(lower, most), &flag(upper, most - 1)], &[]);
        assert!([lower, upper].iter().all(|key| told.contains(&key.replace('_', "-"))), "{told}");
    }
}
