//! Options that every bench has.

/// `cargo bench` and `cargo test` add a word of their own to the command line; these are taken, and not shown.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Common {
    /// Fewer rounds and sizes.
    #[arg(long)]
    quick: bool,
    #[arg(long = "bench", hide = true)]
    _bench: bool,
    #[arg(long, hide = true)]
    test: bool,
}

impl Common {
    pub(crate) fn quick(self) -> bool {
        self.quick || self.test
    }
}
