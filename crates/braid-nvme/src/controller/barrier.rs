//! Order of accesses to memory and registers, as the controller sees it.
//!
//! x86 orders stores to ordinary memory before a later store to a register, and loads before all
//! later accesses, so only the compiler must be held back. Arm and POWER need an instruction: the
//! fences of the language order accesses between processors, and Arm's `dmb ish` leaves out the
//! devices. In tests with `--cfg loom`, the fences of the language are what loom explores.

#[cfg(not(all(target_arch = "aarch64", not(all(test, loom)))))]
use std::sync::atomic::Ordering;

/// Stores to memory before this are visible to the controller before a later store to a register.
#[inline]
pub(super) fn before_doorbell() {
    if braid_rt::mutant!("nvme_doorbell_before_entry") {
        return;
    }
    #[cfg(all(target_arch = "aarch64", not(all(test, loom))))]
    // SAFETY: a barrier changes nothing but the order of accesses.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags))
    };
    #[cfg(not(all(target_arch = "aarch64", not(all(test, loom)))))]
    other(Ordering::Release);
}

/// Accesses after this come after the load of the phase before it: they see what the controller
/// stored before the phase.
#[inline]
pub(super) fn after_phase() {
    if braid_rt::mutant!("nvme_completion_before_phase") {
        return;
    }
    loads();
}

/// Loads before this come before a later store to a register, which lets the controller overwrite
/// the memory. Arm's barrier of [`before_doorbell`] orders stores only.
#[inline]
pub(super) fn before_reuse() {
    loads();
}

/// Loads before this come before all later accesses.
#[inline]
fn loads() {
    #[cfg(all(target_arch = "aarch64", not(all(test, loom))))]
    // SAFETY: a barrier changes nothing but the order of accesses.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags))
    };
    #[cfg(not(all(target_arch = "aarch64", not(all(test, loom)))))]
    other(Ordering::AcqRel);
}

/// The barrier of processors that have one for all, which is `sync` on POWER.
#[cfg(not(all(target_arch = "aarch64", not(all(test, loom)))))]
#[inline]
fn other(explored: Ordering) {
    #[cfg(all(test, loom))]
    braid_loom::fence(explored);
    #[cfg(not(all(test, loom)))]
    {
        let _ = explored;
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}
