//! Prefetch hints for the processor.

/// Prefetches the cache line that contains an address. This is only a hint, and does nothing under
/// Miri or on processors other than x86-64.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program, and any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Prefetches the cache line that contains an address, to write to it. A line that another core has
/// written last then needs no second exchange before the write. As [`prefetch`], a hint.
#[inline(always)]
pub fn prefetch_for_write<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above. The instruction changes no flags and no memory, and a processor without it
    // ignores it. (The intrinsic would need a compiler flag, without which it does not ask for
    // ownership of the line.)
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
