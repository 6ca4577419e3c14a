use super::lengths::Lengths;
use super::*;
use crate::error::Refusal;
use crate::params::FieldError;
use crate::sequence::OpenError;
use crate::speculative::siblings::Repeat;
use crate::speculative::verified::{Chances, Shifts, TokenOrigin, Trial};
use crate::speculative::weights::OwnProbability;

fn info() -> BackendInfo {
    BackendInfo { name: "cpu", device: "a \"quoted\" device".to_owned(), parallelism: 1 }
}

fn metrics(max_model_labels: usize) -> Metrics {
    Metrics::new(&Limits { max_model_labels, ..Limits::default() }, &info())
}

#[test]
fn series_exist_at_zero_before_anything_happens() {
    let text = metrics(4).render();
    for line in [
        "croupier_requests_total{method=\"Decode\",code=\"OK\"} 0",
        "croupier_rejected_total{reason=\"queue_full\"} 0",
        "croupier_rows_invalid_total{model=\"other\",reason=\"nan_logits\"} 0",
        "croupier_connections{transport=\"uds\"} 0",
        "croupier_step_duration_seconds_count{stage=\"backend\"} 0",
        "croupier_queue_capacity 4096",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in:\n{text}");
    }
}

#[test]
fn model_labels_are_bounded() {
    let metrics = metrics(2);
    for label in ["a", "b", "c", "d", "a", &"x".repeat(1000)] {
        metrics.model(label).tokens.increment(1);
    }
    let text = metrics.render();
    for line in ["{model=\"a\"} 2", "{model=\"b\"} 1", "{model=\"other\"} 3"] {
        assert!(text.contains(&format!("croupier_tokens_total{line}")), "{line} is missing in:\n{text}");
    }
    assert!(!text.contains("model=\"c\""));
    let longest = "y".repeat(MAX_LABEL_BYTES);
    let metrics = self::metrics(1);
    metrics.model(&longest).tokens.increment(1);
    assert!(metrics.render().contains(&format!("croupier_tokens_total{{model=\"{longest}\"}} 1\n")));
}

/// Without file descriptors nothing can be read. Zeros would look like a restart.
#[test]
fn what_cannot_be_read_of_the_process_stays_as_it_was() {
    let of_process = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("process_") && !line.starts_with("process_cpu"));
        let mut lines: Vec<_> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let metrics = metrics(1);
    let before = of_process(&metrics.render());
    assert!(before.len() >= 6 && before.iter().all(|line| !line.ends_with(" 0")), "{before:?}");
    let (start, rest): (Vec<_>, Vec<_>) = before.iter().partition(|line| line.starts_with("process_start"));
    assert_eq!(start.len(), 1, "{rest:?}");
    metrics.process.show(&metrics_process::collector::Metrics::default());
    assert_eq!(of_process(&metrics.exporter.as_ref().expect("it exports").handle.render()), before);
}

#[test]
fn unknown_reasons_count_as_other() {
    let metrics = metrics(1);
    metrics.call_finished("Decode", "Ok", Duration::from_millis(1));
    metrics.call_finished("/attack", "??", Duration::from_millis(1));
    metrics.model("m").rows_failed("nan_logits", 1);
    let text = metrics.render();
    assert!(text.contains("croupier_requests_total{method=\"Decode\",code=\"OK\"} 1"), "{text}");
    assert!(text.contains("croupier_requests_total{method=\"other\",code=\"other\"} 1"), "{text}");
    assert!(text.contains("croupier_rows_invalid_total{model=\"m\",reason=\"nan_logits\"} 1"), "{text}");
}

#[test]
fn every_reason_has_a_series_of_its_own_and_is_documented() {
    let metrics = metrics(1);
    for &reason in Reason::ALL {
        (0..=reason as usize).for_each(|_| metrics.refused(reason));
    }
    let (text, page) = (metrics.render(), include_str!("../../docs/metrics.md"));
    let (_, rest) = page.split_once("- `reason` of `croupier_rejected_total`: ").expect("the list of reasons");
    let (listed, _) = rest.split_once("\n- ").expect("the label after it");
    let listed: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
    let names: Vec<String> = Reason::ALL.iter().map(|reason| reason.name().to_lowercase()).collect();
    assert_eq!(listed, names);
    for (at, name) in names.iter().enumerate() {
        assert!(text.contains(&format!("croupier_rejected_total{{reason=\"{name}\"}} {}\n", at + 1)), "{text}");
    }
}

#[test]
fn every_reason_not_to_open_a_sequence_has_a_series_of_its_own_and_is_documented() {
    let errors = [
        OpenError::Invalid(FieldError::new("params.top_k", "is wrong")),
        OpenError::Unimplemented(FieldError::new("params.91", "is new")),
        OpenError::AlreadyExists,
        OpenError::HistoryLimit { predicted: false, tokens: 2, limit: 1 },
        OpenError::StreamLimit { open: 1 },
        OpenError::Refused(Refusal::TooManySequences),
        OpenError::Refused(Refusal::StateBytes),
        OpenError::Refused(Refusal::GrammarsBusy),
    ];
    let never = OpenError::StateLimit { field: "params", bytes: 2, limit: 1 };
    assert_eq!(never.label(), errors[6].label(), "whether it ever fits or not");
    let metrics = metrics(1);
    for (at, error) in errors.iter().enumerate() {
        (0..=at).for_each(|_| metrics.model("m").open_failed(error.label()));
    }
    let (text, page) = (metrics.render(), include_str!("../../docs/metrics.md"));
    let (_, rest) = page.split_once("- `reason` of `croupier_openings_failed_total`: ").expect("the list of reasons");
    let (listed, _) = rest.split_once("\n- ").expect("the label after it");
    let listed: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
    assert_eq!(listed, labels::OPEN_ERRORS);
    for (at, name) in listed[..errors.len()].iter().enumerate() {
        let line = format!("croupier_openings_failed_total{{model=\"m\",reason=\"{name}\"}} {}\n", at + 1);
        assert!(text.contains(&line), "{line} is missing in:\n{text}");
    }
}

#[test]
fn samples_are_counted_once_whether_upkeep_ran_or_not() {
    let metrics = metrics(1);
    for i in 0..1000 {
        metrics.stage(Stage::Total, Duration::from_micros(15));
        if i % 100 == 0 {
            metrics.upkeep();
        }
    }
    let text = metrics.render();
    assert!(text.contains("croupier_step_duration_seconds_bucket{stage=\"total\",le=\"0.00002\"} 1000"), "{text}");
    assert!(text.contains("croupier_step_duration_seconds_count{stage=\"total\"} 1000"), "{text}");
}

#[test]
fn steps_in_trouble_are_told_apart() {
    let metrics = metrics(1);
    for milliseconds in [40, 80, 200, 400, 800, 2000, 8000] {
        metrics.stage(Stage::Total, Duration::from_millis(milliseconds));
    }
    let text = metrics.render();
    for (count, edge) in (0..).zip(["0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "10"]) {
        let line = format!("croupier_step_duration_seconds_bucket{{stage=\"total\",le=\"{edge}\"}} {count}\n");
        assert!(text.contains(&line), "{line} is missing in:\n{text}");
    }
}

#[test]
fn every_reason_to_hand_a_row_over_has_a_series() {
    let metrics = metrics(1);
    for reason in crate::backend::cuda::ask::NoKernel::ALL {
        metrics.handed_over(reason.name(), 2);
        let line = format!("croupier_backend_handed_over_rows_total{{reason=\"{}\"}} 2\n", reason.name());
        assert!(metrics.render().contains(&line), "{line}");
    }
}

/// A verification of these draft tokens, of which the first is rejected.
fn rejecting(proposer: Proposer, trials: &[Trial]) -> Round<'_> {
    Round {
        proposer,
        drafted: trials.len(),
        accepted: 0,
        emitted: 1,
        lossless: true,
        last: Last::Recovered,
        after: TokenOrigin::Sampled,
        text_tokens: 1,
        one_by_one: true,
        by_ratio: true,
        trials,
    }
}

/// What is told of a verification with a single trial, behind one with the same trial that was not measured.
fn told_of(trial: Trial, by_ratio: bool) -> String {
    let metrics = metrics(1);
    let trials = [trial];
    let round = Round { by_ratio, ..rejecting(Proposer::Sent, &trials) };
    let (expected, total_variation, chances, rejected_rank) = (None, None, None, None);
    let unmeasured = [Trial { expected, total_variation, chances, rejected_rank, shifts: Shifts::default(), ..trial }];
    metrics.verified(&metrics.model("m"), &Round { trials: &unmeasured, ..round });
    metrics.verified(&metrics.model("m"), &round);
    metrics.render()
}

/// A rejected token that was measured: the draft has it for certain, and the target has it with this probability.
fn rejected(target: f64, mean: f64) -> Trial {
    Trial {
        index: 0,
        depth: 0,
        number: 77,
        is_first: true,
        accepted: false,
        expected: Some(target),
        total_variation: Some(1.0 - target),
        chances: Some(Chances { target, draft: 1.0, own: OwnProbability { mean, variance: 0.0 } }),
        rejected_rank: Some(0),
        repeat: None,
        shifts: Shifts { late: Some(1.0), early: None, next: None },
    }
}

#[test]
fn a_rejection_is_told_by_its_reason_with_its_rank_if_that_is_known() {
    for (target, by_ratio, reason) in [
        (0.0, true, "ruled_out"),
        (0.0, false, "ruled_out"),
        (0.05, true, "unlikely"),
        (0.5, true, "chance"),
        (0.5, false, "rule"),
    ] {
        let labels = format!("{{model=\"m\",proposer=\"sent\",reason=\"{reason}\"}}");
        let text = told_of(rejected(target, 0.5), by_ratio);
        for line in
            [format!("num_measured_rejected_tokens_total{labels} 1\n"), format!("rejected_rank_count{labels} 0\n")]
        {
            assert!(text.contains(&format!("croupier_spec_decode_{line}")), "{line} is missing in:\n{text}");
        }
    }
}

#[test]
fn a_number_counts_when_its_test_is_measured() {
    let text = told_of(rejected(0.5, 0.5), true);
    let line = "croupier_spec_decode_draft_probability_count{model=\"m\",proposer=\"sent\"} 1\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_token_that_was_certain_does_not_count_as_shifted() {
    for (mean, shifted) in [(0.5, 1), (1.0, 0)] {
        let text = told_of(rejected(0.25, mean), true);
        let of = "{model=\"m\",proposer=\"sent\",shift=\"late\"}";
        assert!(text.contains(&format!("croupier_spec_decode_num_shifted_drafts_total{of} {shifted}\n")), "{text}");
    }
}

#[test]
fn a_shard_without_rows_counts_as_sent_in_a_message() {
    let metrics = metrics(1);
    for way in [DataPath::None, DataPath::Inline, DataPath::SharedMemory] {
        metrics.shards.announced(way);
    }
    let text = metrics.render();
    assert!(text.contains("croupier_shards_total{data_path=\"inline\"} 2\n"), "{text}");
}

/// The number of series without any verified draft, and after this many models have done everything there is.
fn series(model_labels: usize) -> (usize, usize) {
    let metrics = metrics(model_labels);
    let models: Vec<_> = (0..=model_labels).map(|at| metrics.model(&format!("model {at}"))).collect();
    let count = || metrics.render().lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    let plain = count();
    let trial = |depth| Trial {
        index: depth,
        depth,
        number: depth as u64,
        is_first: true,
        accepted: false,
        expected: Some(0.5),
        total_variation: Some(0.5),
        chances: Some(Chances { target: 0.25, draft: 0.5, own: OwnProbability { mean: 0.5, variance: 0.125 } }),
        rejected_rank: Some(2),
        repeat: Some(Repeat { expected: 0.5, found: true }),
        shifts: Shifts { late: Some(0.25), early: Some(0.25), next: None },
    };
    let trials: Vec<Trial> = (0..40).map(trial).collect();
    for (model, proposer) in models.iter().flat_map(|model| Proposer::ALL.map(|proposer| (model, proposer))) {
        let (accepted, last, after) = (trials.len(), Last::Bonus, TokenOrigin::Bonus);
        let round = |text_tokens| Round { accepted, last, after, text_tokens, ..rejecting(proposer, &trials) };
        Lengths::all().for_each(|tokens| metrics.verified(model, &round(tokens)));
    }
    (plain, count())
}

/// A new label multiplies the number of series: whoever adds one has to see by how much, here and in the documentation.
#[test]
fn the_documentation_says_how_many_series_there_are_at_most() {
    let ((plain, all), (more_plain, more)) = (series(1), series(2));
    let (per_plain, per_model) = (more_plain - plain, more - all);
    // There are two labels: the known one and "other".
    let fixed = plain - 2 * per_plain;
    assert_eq!(all - 2 * per_model, fixed);
    let most = Limits::default().max_model_labels;
    let total = fixed + (most + 1) * per_model;
    let text = format!(
        "`{fixed} + {per_plain} × (max_model_labels + 1)` without drafts, and at most `{fixed} + {per_model} × (max_model_labels + 1)` \
         with them: {total} with the default of {most}"
    );
    let page = include_str!("../../docs/metrics.md").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(&text), "docs/metrics.md has to say: {text}");
}

/// The memory of remembered numbers, which `max_state_bytes` does not count.
#[test]
fn the_documentation_says_what_remembered_numbers_take() {
    let each = repeats::MAX_BYTES >> 10;
    let (model, most) = (each * Proposer::ALL.len(), Limits::default().max_model_labels);
    let text = format!(
        "at most {each} KiB for each model label and proposer, once it verifies drafts: {model} KiB for each model label, \
         and {} KiB with the default of {most} and `other`",
        (most + 1) * model
    );
    assert!(include_str!("../../docs/deployment.md").contains(&text), "docs/deployment.md has to say: {text}");
}

#[test]
fn servers_do_not_share_counts() {
    let (a, b) = (metrics(1), metrics(1));
    a.accept_errors.increment(3);
    assert!(a.render().contains("croupier_accept_errors_total 3"));
    assert!(b.render().contains("croupier_accept_errors_total 0"));
    assert_eq!(Metrics::noop().render(), "");
}
