//! Order of accesses to memory and registers, as the controller sees it.
//!
//! x86 orders stores to ordinary memory before a later store to a register, and loads in their
//! order, so only the compiler must be held back. Arm and POWER need an instruction: the fences of
//! the language order accesses between processors, and Arm's `dmb ish` leaves out the devices.

#[cfg(not(target_arch = "aarch64"))]
use std::sync::atomic::Ordering::SeqCst;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
use std::sync::atomic::compiler_fence;
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
use std::sync::atomic::fence;

/// Stores to memory before this are visible to the controller before a later store to a register.
#[inline]
pub(super) fn before_doorbell() {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    compiler_fence(SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes nothing but the order of accesses.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags))
    };
    // `sync` on POWER, which orders stores to memory before those to registers.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    fence(SeqCst);
}

/// Loads after this see what the controller stored before the value that was loaded last.
#[inline]
pub(super) fn after_phase() {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    compiler_fence(SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes nothing but the order of accesses.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags))
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    fence(SeqCst);
}
