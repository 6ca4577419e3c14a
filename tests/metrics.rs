//! What Prometheus sees is what `docs/metrics.md` says.

mod common;

use common::{config, http_get, start};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// Metric families by name.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => families.entry(name.to_owned()).or_default().help = help.to_owned(),
            ["#", "TYPE", name, kind] => families.entry(name.to_owned()).or_default().kind = kind.to_owned(),
            _ => {
                let Some((name, rest)) = line.split_once('{') else { continue };
                let parts = ["_bucket", "_sum", "_count"];
                let base = parts.iter().find_map(|p| name.strip_suffix(p)).filter(|n| families.contains_key(*n));
                let family = families.entry(base.unwrap_or(name).to_owned()).or_default();
                // No value of the metrics here holds `="`, so what stands before it is a label.
                let keys = rest.split("=\"").filter_map(|before| before.rsplit(['{', ',', '"']).next());
                let inner = keys.take(rest.matches("=\"").count());
                family.labels.extend(inner.filter(|key| *key != "le").map(ToOwned::to_owned));
            }
        }
    }
    families
}

fn unit(name: &str) -> &'static str {
    let base = name.trim_end_matches("_total");
    match base {
        _ if base.ends_with("_seconds") => "seconds",
        _ if base.ends_with("_bytes") => "bytes",
        _ => "count",
    }
}

#[tokio::test]
async fn the_documentation_lists_every_metric_and_no_other() {
    let server = start(config()).await;
    let (status, head, text) = http_get(server.addresses.admin.expect("admin is on"), "/metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let mut table = vec!["| metric | type | labels | unit | meaning |".to_owned(), "|---|---|---|---|---|".to_owned()];
    for (name, f) in families(&text) {
        assert!(!f.kind.is_empty() && !f.help.is_empty(), "{name} has no type or no help");
        let labels: Vec<String> = f.labels.iter().map(|label| format!("`{label}`")).collect();
        table.push(format!("| `{name}` | {} | {} | {} | {} |", f.kind, labels.join(" "), unit(&name), f.help));
    }
    let page = include_str!("../docs/metrics.md");
    let listed: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    assert!(listed == table, "the table in docs/metrics.md has to be:\n{}", table.join("\n"));
}

#[tokio::test]
async fn names_follow_the_conventions() {
    let server = start(config()).await;
    let (_, text) = server.get("/metrics").await;
    for (name, family) in families(&text) {
        assert!(name.starts_with("croupier_") || name.starts_with("process_"), "{name}");
        assert_eq!(name.ends_with("_total"), family.kind == "counter", "{name} is a {}", family.kind);
        assert_ne!(family.kind, "summary", "{name}: quantiles cannot be aggregated");
    }
}
