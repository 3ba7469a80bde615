//! Keeping freed memory.

/// Makes the allocator keep what is freed. A history makes and drops whole databases and media in a millisecond;
/// giving their memory back to the system each time and getting it again, zeroed, was half of its time.
pub(crate) fn keep_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    for (parameter, value) in [
        (libc::M_TRIM_THRESHOLD, i32::MAX),
        // The most that is taken: half of what a thread's heap may grow to.
        (libc::M_MMAP_THRESHOLD, 32 << 20),
    ] {
        // SAFETY: sets a parameter of the allocator, which may be done at any time. A refusal costs only time.
        unsafe { libc::mallopt(parameter, value) };
    }
}
