//! Recorded pages, drawn on ratatui's test terminal.

use croupier::top::{ENOUGH_TO_SAY_SHIFTED, NOT_CHANCE, SHIFTED, Scrape, Screen, Theme, draw, full};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;
use std::path::Path;
use std::time::Duration;

const EMPTY: &str = include_str!("pages/empty.txt");
const LOAD: [&str; 2] = [include_str!("pages/load-1.txt"), include_str!("pages/load-2.txt")];
const DRAFTS: [&str; 2] = [include_str!("pages/drafts-1.txt"), include_str!("pages/drafts-2.txt")];
const PATHS: [&str; 2] = [include_str!("pages/paths-1.txt"), include_str!("pages/paths-2.txt")];
const PLAIN: Theme = Theme { color: false };

/// A screen that read these pages, `apart` seconds apart.
fn seen(pages: &[&str], apart: u64, theme: Theme) -> Screen {
    let mut screen = Screen::new("127.0.0.1:9464", theme);
    for (i, page) in pages.iter().enumerate() {
        let taken = Duration::from_secs(apart * i as u64);
        screen.look(Scrape::read(page, taken, started(page) + 100.0 + taken.as_secs_f64()));
    }
    screen
}

/// The page's own `process_start_time_seconds`.
fn started(page: &str) -> f64 {
    value(page, "process_start_time_seconds ")
}

/// The sum of the values of lines with this beginning, read without the program's own parser.
fn value(page: &str, begins: &str) -> f64 {
    page.lines().filter(|l| l.starts_with(begins)).map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

fn drawn(screen: &mut Screen, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(screen, frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let line = |y| -> String { (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect() };
    (0..buffer.area.height).map(|y| format!("{}\n", line(y).trim_end())).collect()
}

fn shown(pages: &[&str], apart: u64, width: u16, height: u16) -> String {
    text(&drawn(&mut seen(pages, apart, PLAIN), width, height))
}

#[test]
fn recorded_pages_look_as_they_must() {
    let busy = DRAFTS[1].replace("{reason=\"queue_full\"} 0", "{reason=\"queue_full\"} 12");
    let busy = busy.replace("croupier_queue_depth 0\n", "croupier_queue_depth 4000\n");
    assert_eq!(busy.len(), DRAFTS[1].len() + 4, "the recorded page has other values there");
    let mut wrong = Vec::new();
    for (name, pages, apart, width, height) in [
        ("wide", &[DRAFTS[0], &busy][..], 4, 132, 46),
        ("80-columns", &DRAFTS[..], 4, 80, 78),
        ("60-columns", &DRAFTS[..], 4, 60, 79),
        ("40-columns", &DRAFTS[..], 4, 40, 100),
        ("low", &DRAFTS[..], 4, 80, 12),
        ("without-drafts", &LOAD[..], 2, 80, 44),
        ("paths", &PATHS[..], 2, 80, 48),
        ("empty", &[EMPTY, EMPTY][..], 2, 80, 37),
        ("restarted", &[LOAD[1], DRAFTS[0]][..], 2, 80, 78),
        ("before-the-second-look", &[EMPTY][..], 2, 80, 3),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/top/screens/{name}.txt"));
        let is = shown(pages, apart, width, height);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &is).unwrap();
        }
        if std::fs::read_to_string(&path).unwrap_or_default() != is {
            wrong.push(format!("{} has to be:\n{is}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}\nIf that is meant: BLESS=1 cargo test --test server top::", wrong.join("\n"));
}

#[test]
fn the_picture_of_the_documentation_is_the_screen() {
    let page = include_str!("../../docs/operations-reference.md");
    let picture = shown(&DRAFTS, 4, 80, 78);
    let picture = picture.trim_end();
    assert!(page.contains(&format!("```text\n{picture}\n```")), "docs/operations-reference.md lacks:\n{picture}");
}

/// The rates are checked against the pages' own lines.
#[test]
fn rates_are_differences_over_the_time_between() {
    let screen = shown(&LOAD, 2, 80, 40);
    let rate = |begins: &str| (value(LOAD[1], begins) - value(LOAD[0], begins)) / 2.0;
    let with_commas = |n: f64| {
        let n = n.round() as u64;
        if n < 1000 { n.to_string() } else { format!("{},{:03}", n / 1000, n % 1000) }
    };
    let tokens = format!("{} tokens/s", with_commas(rate("croupier_tokens_total{")));
    assert!(screen.contains(&tokens), "{tokens} in\n{screen}");
    let steps = with_commas(rate("croupier_step_duration_seconds_count{stage=\"total\"}"));
    let total = screen.lines().find(|l| l.starts_with("total")).unwrap();
    assert_eq!(total.split_whitespace().nth(1), Some(steps.as_str()), "{screen}");
    assert!(screen.contains("no drafts since the start"), "{screen}");
}

/// The words of a screen's section from its title to the empty line after it.
fn section<'a>(screen: &'a str, title: &str) -> Vec<&'a str> {
    let lines = screen.lines().skip_while(|line| !line.starts_with(title)).take_while(|line| !line.is_empty());
    lines.flat_map(str::split_whitespace).collect()
}

#[test]
fn the_load_is_that_of_the_server() {
    let new = |begins: &str| value(DRAFTS[1], begins) - value(DRAFTS[0], begins);
    let mean = |of: &str| new(&format!("{of}_sum")) / new(&format!("{of}_count"));
    let load = section(&shown(&DRAFTS, 4, 80, 78), "LOAD").join(" ");
    for said in [
        format!("engine busy {:.2} ", new("croupier_batch_duration_seconds_sum") / 4.0).replace(" 0.", " ."),
        format!("{:.1} cores used", new("process_cpu_seconds_total ") / 4.0),
        format!("{:.1} steps a batch", mean("croupier_batch_steps")),
        format!("{:.1} rows a batch", mean("croupier_batch_rows")),
        "worker's turn p50".to_owned(),
    ] {
        assert!(load.contains(&said), "{said} in {load}");
    }
    // These pages do not count the waiting for cores, and no text had a grammar.
    assert!(!load.contains("waited for") && !load.contains("grammar"), "{load}");
    // The pages of an older server lack more.
    let older = section(&shown(&LOAD, 2, 80, 44), "LOAD").join(" ");
    assert!(older.contains("cores used") && !older.contains("busy") && !older.contains("turn"), "{older}");
}

#[test]
fn waiting_for_cores_and_for_grammars_is_told() {
    let histogram = |name: &str, count: u32| {
        let name = format!("croupier_grammar_{name}_seconds");
        format!(
            "# TYPE {name} histogram\n{name}_bucket{{le=\"0.1\"}} {count}\n{name}_bucket{{le=\"+Inf\"}} {count}\n\
             {name}_sum 0\n{name}_count {count}\n"
        )
    };
    let page = |page: &str, waited: u32, masks: u32| {
        let name = "croupier_cpu_wait_seconds_total";
        let (wait, compile) = (histogram("wait", masks), histogram("compile", 7));
        format!("{page}# TYPE {name} counter\n{name} {waited}\n{wait}{compile}")
    };
    let pages = [page(LOAD[0], 10, 0), page(LOAD[1], 13, 100)];
    let load = section(&shown(&[&pages[0], &pages[1]], 2, 80, 44), "LOAD").join(" ");
    assert!(load.contains("1.5 cores waited for"), "{load}");
    assert!(load.contains("grammar wait p50 50.0 ms p99 99.0 ms"), "{load}");
    // None was compiled between the pages.
    assert!(!load.contains("compile"), "{load}");
}

#[test]
fn each_data_path_is_shown_with_its_own_rates() {
    let screen = shown(&PATHS, 2, 80, 60);
    let rate = |begins: &str| (value(PATHS[1], begins) - value(PATHS[0], begins)) / 2.0;
    for path in ["inline", "shared_memory", "vocab_shards"] {
        let line =
            screen.lines().find(|l| l.split(' ').next() == Some(path)).unwrap_or_else(|| panic!("{path} in\n{screen}"));
        let shown: Vec<f64> = line.split_whitespace().skip(1).map(|n| n.replace(',', "").parse().unwrap()).collect();
        let [steps, shards] = ["steps", "shards"].map(|of| format!("croupier_{of}_total{{data_path=\"{path}\"}}"));
        let are = [rate(&steps), rate(&shards), value(PATHS[1], &steps)];
        // Numbers have three digits on the screen.
        let close = |(shown, is): (&f64, f64)| (shown - is).abs() <= is.max(100.0) * 0.005;
        assert!(shown.len() == 3 && shown.iter().zip(are).all(close), "{are:?} in\n{screen}");
    }
    assert!(
        rate("croupier_shards_total{data_path=\"inline\"}") > 0.0 && screen.contains("regions 1, ranks 3"),
        "{screen}"
    );
    assert!(screen.contains("until the last shard") && !screen.contains("device_memory"), "{screen}");
    let held = value(PATHS[1], "croupier_region_bytes ");
    let line = screen.lines().find(|l| l.starts_with("region_bytes")).unwrap();
    assert!(held > 0.0 && !line.contains(" 0 B "), "{screen}");
}

#[test]
fn what_a_gpu_left_and_what_failed_on_the_way_is_told() {
    let handed = |rows| format!("handed_over_rows_total{{reason=\"chain\"}} {rows}\n");
    let page = PATHS[1].replace(&handed(0), &handed(400));
    let page = page.replace(
        "croupier_shard_failures_total{reason=\"left\"} 0",
        "croupier_shard_failures_total{reason=\"left\"} 2",
    );
    let page = page.replace("_leases_total{result=\"region_bytes\"} 0", "_leases_total{result=\"region_bytes\"} 3");
    let failed = "_reloads_total{what=\"tls\",result=\"failed\"}";
    let page = page.replace(&format!("{failed} 0"), &format!("{failed} 4"));
    let refused = "croupier_openings_failed_total{model=\"default\",reason=\"too_many_sequences\"}";
    let page = page + "# TYPE croupier_openings_failed_total counter\n" + refused + " 6\n";
    let screen = shown(&[PATHS[0], &page], 2, 80, 60);
    assert!(screen.contains("200 rows/s on the CPU beside the GPU: chain"), "{screen}");
    let errors: Vec<Vec<&str>> = screen.lines().map(|l| l.split_whitespace().collect()).collect();
    assert!(errors.contains(&vec!["left", "shards", "2", "1.0", "2"]), "{screen}");
    assert!(errors.contains(&vec!["region_bytes", "lease", "3", "1.5", "3"]), "{screen}");
    assert!(errors.contains(&vec!["tls", "reload", "4", "2.0", "4"]), "{screen}");
    assert!(errors.contains(&vec!["too_many_sequences", "opening", "default", "6", "3.0", "6"]), "{screen}");
}

#[test]
fn acceptance_is_shown_beside_what_was_expected() {
    let screen = shown(&DRAFTS, 4, 80, 74);
    let new = |begins: &str| value(DRAFTS[1], begins) - value(DRAFTS[0], begins);
    let labels = "{model=\"spec-broken\",proposer=\"sent\",position=\"0\"}";
    let metric = |name: &str| new(&format!("croupier_spec_decode_{name}{labels}"));
    let accepted = metric("num_accepted_tokens_per_pos_total") / metric("num_tested_tokens_per_pos_total");
    let expected = metric("expected_acceptance_sum") / metric("expected_acceptance_count");
    assert!(expected - accepted > 0.1, "the recorded draft is not broken: {accepted} of {expected}");
    let broken: Vec<&str> = screen.lines().skip_while(|l| !l.starts_with("spec-broken sent")).take(8).collect();
    let first = |row: &str| -> f64 {
        let line = broken.iter().find_map(|l| l.strip_prefix(row)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert!((first("accepted") - accepted).abs() <= 0.005, "{screen}");
    assert!((first("expected") - expected).abs() <= 0.005, "{screen}");
    assert!(broken[1].contains("accepted -") && broken[1].contains("not as expected"), "{screen}");
    let drawn = ["draft_probability_sum", "expected_draft_probability_sum"]
        .map(|name| new(&format!("croupier_spec_decode_{name}{{model=\"spec-broken\"")));
    assert!(drawn[0] < drawn[1] && broken[1].contains("drawn -"), "{screen}");
    for wrong in ["not as expected", "not as claimed"] {
        assert_eq!(screen.matches(wrong).count(), 1, "{screen}");
    }
}

/// The alert on siblings has the same formula and the same bound.
#[test]
fn siblings_that_are_not_drawn_as_claimed_are_told() {
    let labels = "{model=\"spec-sent\",proposer=\"sent\"}";
    let page = |page: &str, repeated: u32, expected: u32| {
        let (found, of) = ("num_repeated_siblings_total", "expected_repeated_siblings");
        let [found, of] = [found, of].map(|name| format!("croupier_spec_decode_{name}"));
        format!(
            "{page}# TYPE {found} counter\n{found}{labels} {repeated}\n\
             # TYPE {of} histogram\n{of}_sum{labels} {expected}\n{of}_count{labels} {expected}00\n"
        )
    };
    let told = |repeated: u32| {
        let pages = [page(DRAFTS[0], 1, 1), page(DRAFTS[1], 1 + repeated, 33)];
        let screen = shown(&[&pages[0], &pages[1]], 4, 80, 100);
        let block: Vec<&str> = screen.lines().skip_while(|line| !line.starts_with("spec-sent sent")).take(4).collect();
        block.join(" ")
    };
    assert!(told(68).contains("siblings +6.0 se: not as claimed"), "{}", told(68));
    assert!(told(0).contains("siblings -5.3 se: not as claimed"), "{}", told(0));
    assert!(told(32).contains("siblings +0.0 se") && !told(32).contains("not as claimed"), "{}", told(32));
    assert!(!shown(&DRAFTS, 4, 80, 100).contains("siblings"), "chains have none");
}

/// A page in which the two overlaps of one shift are exchanged, and the other shift is left out.
fn turned(page: &str, other: &str) -> String {
    let [own, shifted] = ["own", "shifted"].map(|of| format!("croupier_spec_decode_{of}_overlap"));
    let lines = page.lines().filter(|line| !line.contains(&format!("shift=\"{other}\"")));
    let turned = lines.map(|line| match line.contains(&own) {
        true => line.replace(&own, &shifted),
        false => line.replace(&shifted, &own),
    });
    turned.fold(String::new(), |all, line| all + &line + "\n")
}

#[test]
fn rows_that_are_one_place_off_are_named() {
    let [own, shifted] = ["own", "shifted"].map(|of| format!("croupier_spec_decode_{of}_overlap"));
    for (shift, other) in [("late", "early"), ("early", "late")] {
        let turned = DRAFTS.map(|page| turned(page, other));
        let screen = shown(&turned.each_ref().map(String::as_str), 4, 80, 100);
        let new = |name: &str| {
            let labels = format!("model=\"spec-sent\",proposer=\"sent\",shift=\"{shift}\"");
            let [sum, count] = ["sum", "count"].map(|part| {
                let begins = format!("{name}_{part}{{{labels}}}");
                value(DRAFTS[1], &begins) - value(DRAFTS[0], &begins)
            });
            format!("{:.2}", sum / count).trim_start_matches('0').to_owned()
        };
        let said = format!("rows one {shift}: overlap {}, not {}", new(&own), new(&shifted));
        assert!(screen.contains(&said), "{said} in\n{screen}");
        assert!(!screen.contains(&format!("rows one {other}")), "{screen}");
    }
    assert!(!shown(&DRAFTS, 4, 80, 100).contains("rows one"), "of sound rows nothing is said");
}

/// More than 200 verifications have to be measured between two pages, or the screen does not report shifted rows.
#[test]
fn of_few_verifications_it_is_not_said_that_rows_are_off() {
    let [first, second] = DRAFTS.map(|page| turned(page, "early"));
    let count = "overlap_count{model=\"spec-sent\",proposer=\"sent\",shift=\"late\"} ";
    let [before, now] =
        [&first, &second].map(|page| value(page, &format!("croupier_spec_decode_shifted_{count}")) as u64);
    let said = |tests: u64| {
        let second = second.replace(&format!("{count}{now}\n"), &format!("{count}{}\n", before + tests));
        shown(&[&first, &second], 4, 80, 100).matches("rows one late").count()
    };
    assert!(now - before > 201, "the recorded pages measured {}", now - before);
    assert_eq!(said(201), said(now - before));
    assert_eq!(said(200) + 1, said(201));
}

/// `croupier top` reports shifted rows under the same conditions as the alert.
#[test]
fn rows_are_off_by_the_alert_and_here_under_the_same_conditions() {
    let rules = include_str!("../../helm/croupier/files/rules.yaml");
    let alert = rules.split("alert: CroupierRowsShifted").nth(1).and_then(|alert| alert.split("for:").next()).unwrap();
    let conditions: Vec<(&str, f64)> = alert
        .lines()
        .filter_map(|line| line.split_once(" > "))
        .map(|(of, least)| (of.trim().trim_start_matches("and "), least.trim().parse().unwrap()))
        .collect();
    let here = [
        ("croupier:spec_decode_shifted_minus_own:ratio30m", SHIFTED),
        ("croupier:spec_decode_shifted_minus_own:stderrs30m", NOT_CHANCE),
        ("croupier:spec_decode_shift_measured:increase30m", ENOUGH_TO_SAY_SHIFTED),
    ];
    assert_eq!(conditions, here);
}

/// Bounds are red if the alert would report them as full.
#[test]
fn bounds_are_full_by_the_alert_and_here_alike() {
    let rules = include_str!("../../helm/croupier/files/rules.yaml");
    let alert = rules.split("alert: CroupierSaturated").nth(1).and_then(|alert| alert.split("for:").next()).unwrap();
    let resource = |of: &'static str| match of.split_once("resource") {
        Some((_, named)) if named.starts_with("=") => named.split('"').nth(1),
        Some((_, left_out)) if left_out.starts_with("!~") => Some("any other"),
        _ => None,
    };
    let conditions: Vec<(&str, f64)> = alert
        .lines()
        .filter_map(|line| line.split_once(" > "))
        .filter_map(|(of, least)| Some((resource(of)?, least.trim().parse().unwrap())))
        // Model labels are not shown here, and may be full. What workers hold is red here also where nobody was refused any.
        .filter(|(resource, _)| *resource != "model_labels" && !resource.contains('|'))
        .collect();
    assert_eq!(conditions, ["any other", "connections"].map(|resource| (resource, full(resource))));
}

#[test]
fn a_restart_makes_no_negative_rate() {
    let screen = shown(&[LOAD[1], EMPTY], 2, 80, 34);
    // Both pages are from the same process here, so only the counters show the restart.
    assert!(screen.contains("restarted meanwhile") && screen.contains("0 tokens/s"), "{screen}");
    let is_negative = |at: (usize, &str)| screen[at.0 + 1..].starts_with(|c: char| c.is_ascii_digit());
    assert!(!screen.match_indices('-').any(is_negative), "{screen}");
    // Later pages are compared with pages after the restart.
    let again = shown(&[LOAD[1], EMPTY, LOAD[0]], 2, 80, 34);
    let rate = (value(LOAD[0], "croupier_tokens_total{") / 2.0).round() as u64;
    assert!(!again.contains("restarted"), "{again}");
    assert!(again.contains(&format!("{},{:03} tokens/s", rate / 1000, rate % 1000)), "{rate} in\n{again}");
}

#[test]
fn narrow_windows_keep_what_matters() {
    for width in [60, 40] {
        let screen = shown(&DRAFTS, 4, width, 100);
        for word in
            ["tokens/s", "p99", "rows in flight", "queue", "accepted", "expected", "ERRORS AND REFUSALS", "spec-sent"]
        {
            assert!(screen.contains(word), "{word} at {width} in\n{screen}");
        }
    }
    for (width, height) in [(1, 1), (2, 40), (10, 3), (300, 2)] {
        shown(&DRAFTS, 4, width, height);
    }
}

#[test]
fn colour_is_left_out_when_it_is_not_wanted() {
    let colours = |theme| {
        let buffer = drawn(&mut seen(&DRAFTS, 4, theme), 132, 42);
        let own = buffer.content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count();
        (own, text(&buffer))
    };
    let (without, plain) = colours(PLAIN);
    let (with, coloured) = colours(Theme { color: true });
    assert_eq!(without, 0);
    assert!(with > 50, "{with}");
    assert_eq!(plain, coloured, "something is said by colour alone");
}

#[test]
fn without_an_answer_the_last_figures_stay() {
    let mut screen = seen(&LOAD, 2, PLAIN);
    let before = text(&drawn(&mut screen, 80, 40));
    screen.look(Err("Connection refused".to_owned()));
    let after = text(&drawn(&mut screen, 80, 40));
    assert!(after.contains("NO ANSWER, trying again: Connection refused"), "{after}");
    // Two lines about the server, then its figures.
    let body = |screen: &str| screen.lines().take(39).skip(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(body(&before), body(&after));
    let state = |screen: &str| screen.lines().take(2).collect::<Vec<_>>().join("  ");
    assert!(state(&before).contains("  ready  ") && !state(&after).contains("ready"), "{after}");
    assert!(state(&after).contains("  NO ANSWER  "), "{after}");
    // It answers again.
    screen.look(Scrape::read(LOAD[1], Duration::from_secs(4), started(LOAD[1]) + 104.0));
    assert!(state(&text(&drawn(&mut screen, 80, 40))).contains("  ready  "));
    // Before the second look there are no figures yet.
    let mut first = seen(&LOAD[..1], 2, PLAIN);
    first.look(Err("Connection refused".to_owned()));
    let after = text(&drawn(&mut first, 80, 3));
    assert!(after.starts_with("NO ANSWER, trying again: Connection refused"), "{after}");
}

#[test]
fn labels_cannot_steer_the_terminal() {
    let [before, now] = LOAD.map(|page| page.replace("model=\"bench\"", "model=\"a\x1b[2Jb\""));
    let screen = shown(&[&before, &now], 2, 80, 40);
    assert!(screen.contains("a?[2Jb"), "{screen}");
    assert!(!screen.contains('\x1b'));
}
