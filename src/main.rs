//! The `croupier` program.

fn main() {}
