//! Counts what comparing and changing documents costs, for the tests that hold it to a bound. Nothing else counts.

#[cfg(test)]
std::thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// So many members, items or cells are gone through, or so many bytes copied.
#[inline]
pub(crate) fn count(_steps: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + _steps);
}

/// What something takes on this thread.
#[cfg(test)]
pub(crate) fn of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = STEPS.get();
    let done = work();
    (done, STEPS.get() - before)
}
