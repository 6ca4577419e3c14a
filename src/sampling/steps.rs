//! Counts elementary steps in tests, so that a bound stated in steps can be tested without a clock.

/// Counts one step. Outside of tests it does nothing.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    counted::STEPS.set(counted::STEPS.get() + 1);
}

/// Steps that `work` takes on this thread.
#[cfg(test)]
pub(crate) fn steps<T>(work: impl FnOnce() -> T) -> usize {
    counted::STEPS.set(0);
    work();
    counted::STEPS.get()
}

#[cfg(test)]
mod counted {
    use std::cell::Cell;

    thread_local! {
        pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
    }
}
