//! Every parameter of the wire is implemented and listed as supported, or known to be missing.

use croupier::params::SUPPORTED;

/// Parameters that the schema has and the server has not.
const NOT_YET: [&str; 0] = [];

#[test]
fn every_parameter_of_the_schema_is_listed() {
    let schema = include_str!("../proto/croupier/v1/sampler.proto");
    let message = schema.split_once("\nmessage SamplingParams {").expect("the message").1;
    let lines = message.lines().map(str::trim).take_while(|line| *line != "}");
    let declared = lines.filter(|line| !line.starts_with("//")).filter_map(|line| line.split_once(" = "));
    let fields: Vec<&str> = declared.filter_map(|(field, _)| field.split(' ').next_back()).collect();
    let listed = [&SUPPORTED[..], &NOT_YET].concat();
    assert_eq!(fields, listed, "params::SUPPORTED is what GetServerInfo tells clients");
}
