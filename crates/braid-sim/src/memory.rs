//! Keeping freed memory.

/// Makes the allocator keep freed memory. A history creates and drops whole databases and media in
/// a millisecond; returning their memory to the system each time and getting it again, zeroed, took
/// half of the time.
pub(crate) fn keep_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    for (parameter, value) in [
        (libc::M_TRIM_THRESHOLD, i32::MAX),
        // The greatest accepted value: half of a thread's largest heap.
        (libc::M_MMAP_THRESHOLD, 32 << 20),
    ] {
        // SAFETY: sets a parameter of the allocator, which may be done at any time. A refusal costs
        // only time.
        unsafe { libc::mallopt(parameter, value) };
    }
}
