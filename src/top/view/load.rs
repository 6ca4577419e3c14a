//! The section LOAD. What the server does not tell, and what did not happen, is left out.

use super::{Section, Theme, highest, plain, section};
use crate::metrics::catalog::{self as cat, Def};
use crate::output::counted;
use crate::top::figures::Figures;
use crate::top::load::{Durations, Load};
use crate::top::table::flow;
use crate::top::units::{rate, share, time};
use ratatui::text::Line;

pub(super) fn load(f: &Figures, theme: Theme, width: usize) -> Section {
    let load = &f.load;
    let mut lines = told(process(load), width);
    lines.extend(told(batches(load), width));
    lines.extend(told(grammars(load), width));
    section(theme, "LOAD", &format!("over {:.1} s", load.seconds), lines)
}

fn told<const N: usize>(items: [Option<String>; N], width: usize) -> Vec<Line<'static>> {
    flow(items.into_iter().flatten().map(plain).collect(), width)
}

fn process(load: &Load) -> [Option<String>; 4] {
    [
        load.busy.map(|busy| format!("engine busy {}", share(Some(busy)))),
        load.cores_used.map(|cores| format!("{} cores used", rate(cores))),
        load.cores_waited_for.map(|cores| format!("{} cores waited for", rate(cores))),
        load.sampling_threads.map(|threads| counted(threads, "sampling thread")),
    ]
}

fn batches(load: &Load) -> [Option<String>; 3] {
    [
        load.steps_per_batch.map(|steps| format!("{} steps a batch", rate(steps))),
        load.rows_per_batch.map(|rows| format!("{} rows a batch", rate(rows))),
        durations("worker's turn", load.worker_turn.as_ref(), &cat::WORKER_TURN),
    ]
}

fn grammars(load: &Load) -> [Option<String>; 2] {
    [
        durations("grammar wait", load.grammar_wait.as_ref(), &cat::GRAMMAR_WAIT),
        durations("grammar compile", load.grammar_compile.as_ref(), &cat::GRAMMAR_COMPILE),
    ]
}

fn durations(what: &str, durations: Option<&Durations>, def: &Def) -> Option<String> {
    let durations = durations.filter(|durations| durations.count.new > 0)?;
    let [p50, p99] = [durations.p50, durations.p99].map(|quantile| time(quantile, highest(def)));
    Some(format!("{what} p50 {p50} p99 {p99}"))
}
