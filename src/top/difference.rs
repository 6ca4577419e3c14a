//! The differences between two scrapes.

use super::Scrape;
use crate::metrics::catalog::{self as cat, Def};
use crate::metrics::exposition::{Kind, Page, Sample};
use std::collections::{BTreeMap, HashMap};

/// A series: the name and the labels.
type Series<'a> = (&'a str, &'a [(String, String)]);

/// Two pages of one server. If the server was started between them, the earlier page counts as empty.
pub(super) struct Difference<'a> {
    before: HashMap<Series<'a>, f64>,
    now: &'a Page,
    pub(super) seconds: f64,
    pub(super) restarted: bool,
}

/// A counter: its value at the end, and its increase since the earlier page.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Increase {
    pub(super) total: f64,
    pub(super) new: f64,
}

impl std::ops::AddAssign for Increase {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.new += other.new;
    }
}

impl<'a> Difference<'a> {
    pub(super) fn new(before: &'a Scrape, now: &'a Scrape) -> Self {
        let seconds = now.taken.saturating_sub(before.taken).as_secs_f64();
        let series = |page: &'a Page| -> HashMap<Series<'a>, f64> {
            let counted = page.values().filter(|family| matches!(family.kind, Kind::Counter | Kind::Histogram));
            counted.flat_map(|family| &family.samples).map(|sample| (key(sample), sample.value)).collect()
        };
        let (old, new) = (series(&before.page), series(&now.page));
        // Either sign is enough, and each may be missing: start times are in whole seconds, and all counters may have
        // been 0.
        let went_back = new.iter().any(|(series, value)| old.get(series).is_some_and(|before| before > value));
        let start = |scrape: &'a Scrape| gauge(&scrape.page, &cat::PROCESS_START);
        let restarted = went_back || start(before) != start(now);
        Self { before: if restarted { HashMap::new() } else { old }, now: &now.page, seconds, restarted }
    }

    pub(super) fn gauge(&self, def: &Def) -> f64 {
        gauge(self.now, def)
    }

    /// The value of a label in a family's first series.
    pub(super) fn label(&self, def: &Def, label: &str) -> String {
        let first = self.now.get(def.name).and_then(|family| family.samples.first());
        first.and_then(|sample| sample.label(label)).unwrap_or_default().to_owned()
    }

    /// The counters of a family, summed over all labels but these.
    pub(super) fn by<const N: usize>(&self, def: &Def, labels: [&str; N]) -> BTreeMap<[&'a str; N], Increase> {
        let mut groups = BTreeMap::new();
        for sample in self.samples(def) {
            *groups.entry(group(sample, labels)).or_default() += self.increase(sample);
        }
        groups
    }

    /// The counters of a family, summed over all labels.
    pub(super) fn all(&self, def: &Def) -> Increase {
        self.counted(def).unwrap_or_default()
    }

    /// The same; `None` if the server does not have this family.
    pub(super) fn counted(&self, def: &Def) -> Option<Increase> {
        self.by(def, []).into_values().next()
    }

    /// The histograms of a family, summed over all labels but these.
    pub(super) fn histograms<const N: usize>(&self, def: &Def, labels: [&str; N]) -> BTreeMap<[&'a str; N], Histogram> {
        let mut groups: BTreeMap<_, Histogram> = BTreeMap::new();
        for sample in self.samples(def) {
            let histogram = groups.entry(group(sample, labels)).or_default();
            let increase = self.increase(sample);
            match sample.name.strip_prefix(def.name) {
                Some("_sum") => histogram.sum += increase.new,
                Some("_count") => histogram.count += increase,
                _ => histogram.add(sample.label("le").and_then(|bound| bound.parse().ok()), increase.new),
            }
        }
        groups
    }

    /// The histograms of a family, summed over all labels. `None` if the server does not have this family.
    pub(super) fn histogram(&self, def: &Def) -> Option<Histogram> {
        self.histograms(def, []).into_values().next()
    }

    fn samples(&self, def: &Def) -> &'a [Sample] {
        self.now.get(def.name).map_or(&[], |family| &family.samples)
    }

    fn increase(&self, sample: &Sample) -> Increase {
        let before = self.before.get(&key(sample)).copied().unwrap_or_default();
        Increase { total: sample.value, new: sample.value - before }
    }
}

fn key(sample: &Sample) -> Series<'_> {
    (&sample.name, &sample.labels)
}

fn group<'a, const N: usize>(sample: &'a Sample, labels: [&str; N]) -> [&'a str; N] {
    labels.map(|label| sample.label(label).unwrap_or_default())
}

/// A gauge, summed over its labels.
fn gauge(page: &Page, def: &Def) -> f64 {
    page.get(def.name).map_or(0.0, |family| family.samples.iter().map(|sample| sample.value).sum())
}

/// The observations between two scrapes.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// Upper bounds in ascending order, each with the number of observations up to it.
    buckets: Vec<(f64, f64)>,
    pub(super) sum: f64,
    pub(super) count: Increase,
}

impl Histogram {
    fn add(&mut self, bound: Option<f64>, observations: f64) {
        let Some(bound) = bound else { return };
        match self.buckets.binary_search_by(|(known, _)| known.total_cmp(&bound)) {
            Ok(at) => self.buckets[at].1 += observations,
            Err(at) => self.buckets.insert(at, (bound, observations)),
        }
    }

    /// `None` without observations.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count.new > 0.0).then(|| self.sum / self.count.new)
    }

    /// A quantile, 0 to 1, estimated as Prometheus' `histogram_quantile` does: observations are taken as evenly spread
    /// within a bucket, and those beyond the highest finite bound as equal to it. `None` without observations.
    pub(super) fn quantile(&self, quantile: f64) -> Option<f64> {
        let rank = quantile * self.buckets.last()?.1;
        let at = self.buckets.iter().position(|&(_, below)| below >= rank && below > 0.0)?;
        let (lower, before) = at.checked_sub(1).map_or((0.0, 0.0), |before| self.buckets[before]);
        let (upper, below) = self.buckets[at];
        if upper.is_infinite() || upper <= 0.0 {
            return Some(if upper.is_infinite() { lower } else { upper });
        }
        Some(lower + (upper - lower) * (rank - before) / (below - before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(buckets: &[(f64, f64)]) -> Histogram {
        Histogram { buckets: buckets.to_vec(), ..Histogram::default() }
    }

    #[test]
    fn quantiles_are_those_of_prometheus() {
        let h = histogram(&[(1.0, 10.0), (2.0, 10.0), (4.0, 30.0), (f64::INFINITY, 40.0)]);
        // Rank 5 is the middle of the first bucket, and rank 20 the middle of the third.
        assert_eq!(h.quantile(0.125), Some(0.5));
        assert_eq!(h.quantile(0.25), Some(1.0));
        assert_eq!(h.quantile(0.5), Some(3.0));
        assert_eq!(h.quantile(0.99), Some(4.0));
        assert_eq!(histogram(&[(1.0, 0.0), (f64::INFINITY, 0.0)]).quantile(0.5), None);
        assert_eq!(histogram(&[]).quantile(0.5), None);
        assert_eq!(histogram(&[(0.0, 3.0), (1.0, 3.0)]).quantile(0.9), Some(0.0));
        assert_eq!(histogram(&[(f64::INFINITY, 3.0)]).quantile(0.9), Some(0.0));
    }

    fn scrape(start: u32, counter: &str) -> Scrape {
        let text = format!(
            "# TYPE croupier_build_info gauge\ncroupier_build_info 1\n# TYPE process_start_time_seconds gauge\n\
             process_start_time_seconds {start}\n# TYPE croupier_tokens_total counter\n{counter}\n"
        );
        Scrape::read(&text, std::time::Duration::ZERO, 0.0).expect("a page")
    }

    #[test]
    fn after_a_restart_counters_begin_at_0() {
        let of = |before: &Scrape, now: &Scrape| {
            let difference = Difference::new(before, now);
            (difference.restarted, difference.all(&cat::TOKENS).new)
        };
        let before = scrape(10, "croupier_tokens_total{model=\"a\"} 7");
        assert_eq!(of(&before, &scrape(10, "croupier_tokens_total{model=\"a\"} 9")), (false, 2.0));
        assert_eq!(of(&before, &scrape(10, "croupier_tokens_total{model=\"b\"} 9")), (false, 9.0));
        assert_eq!(of(&before, &scrape(10, "croupier_tokens_total{model=\"a\"} 6")), (true, 6.0));
        assert_eq!(of(&before, &scrape(11, "croupier_tokens_total{model=\"a\"} 9")), (true, 9.0));
    }
}
