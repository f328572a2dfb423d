//! Counts looks at table entries, in tests only: what a message costs must not depend on how much
//! its sender has put into the tables. Elsewhere [`step`] is nothing.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// One entry of a table or list is looked at.
#[inline(always)]
pub(super) fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// Steps taken on this thread so far.
#[cfg(test)]
pub(super) fn taken() -> u64 {
    STEPS.get()
}
