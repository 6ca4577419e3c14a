//! Random complete parameters over real sockets: from the wire through sequences and the engine to the backend. Accepted parameters give
//! the specification's tokens on every instruction set, and the same tokens twice, in another batch and opened again, by sample, draft and
//! verify work. Errors for refused ones name a field.

mod checking;
pub(crate) mod draw;
mod fields;
mod life;

use crate::support::{TestServer, Transport};
use checking::Checking;
use croupier::limits::Limits;
use croupier::params::SUPPORTED;
use draw::FIELDS;
use life::{Counts, Life};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestCaseError, TestRunner};
use std::cell::RefCell;

/// Each field of the schema is drawn, so a new field needs an entry in the table.
#[test]
fn every_parameter_is_drawn() {
    let (mut drawn, mut all) = (FIELDS.map(|(name, _)| name).to_vec(), SUPPORTED.to_vec());
    drawn.sort_unstable();
    all.sort_unstable();
    assert_eq!(drawn, all);
}

#[test]
fn whole_parameters_sample_as_specified_or_name_a_field() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (checking, faults) = Checking::new();
    let server = runtime.block_on(TestServer::with(Transport::Tcp, Limits::default(), Box::new(checking)));
    let channel = runtime.block_on(server.channel());
    let (counts, config) = (RefCell::new(Counts::default()), config(500));
    let cases = config.cases;
    let run = TestRunner::new(config).run(&(any::<u64>(), 0..4usize), |(seed, density)| {
        let mut life = Life::new(channel.clone(), seed, [0.02, 0.07, 0.2, 0.6][density]);
        let went = runtime.block_on(life.live(&mut counts.borrow_mut()));
        let found = std::mem::take(&mut *faults.lock().unwrap());
        let told = |what: &str| TestCaseError::fail(format!("{what}\n{life}"));
        went.map_err(|what| told(&what))?;
        if found.is_empty() { Ok(()) } else { Err(told(&found.join("\n"))) }
    });
    let counts = counts.into_inner();
    println!("{counts}");
    run.unwrap();
    counts.hold(cases);
}

/// Runs more cases if PROPTEST_CASES says so. Failing cases are kept in `tests/regressions` and tried first.
fn config(cases: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    ProptestConfig {
        cases: wanted.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/regressions/whole.txt"))),
        ..ProptestConfig::default()
    }
}
