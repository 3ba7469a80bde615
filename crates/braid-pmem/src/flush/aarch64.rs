//! 64-bit Arm under Linux, which allows these instructions to programs.

use core::arch::asm;
use std::sync::atomic::AtomicU64;

use super::{FlushMethod, Unsupported};

/// The bit of `AT_HWCAP` for `dc cvap`.
const HWCAP_DCPOP: u64 = 1 << 16;

#[allow(
    clippy::unnecessary_wraps,
    reason = "detection fails on other processors"
)]
pub(super) fn detect() -> Result<(FlushMethod, usize), Unsupported> {
    // SAFETY: reads a constant of the process.
    let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP) };
    let cache_type: u64;
    // SAFETY: Linux lets programs read the register.
    unsafe {
        asm!("mrs {}, ctr_el0", out(reg) cache_type, options(nomem, nostack, preserves_flags));
    }
    Ok(select(capabilities, cache_type))
}

/// Selects by the kernel's capabilities and the register `CTR_EL0`.
pub(super) fn select(capabilities: u64, cache_type: u64) -> (FlushMethod, usize) {
    let method = if capabilities & HWCAP_DCPOP == 0 {
        FlushMethod::DcCivac
    } else {
        FlushMethod::DcCvap
    };
    // DminLine: the logarithm of the words of four bytes in the smallest line of data.
    (method, 4 << (cache_type >> 16 & 0xf))
}

#[inline]
pub(super) fn flush_line(method: FlushMethod, word: &AtomicU64) {
    let line = word.as_ptr();
    // SAFETY: `line` points into a live word. Cleaning a line changes no memory. Without `nomem`,
    // the compiler keeps earlier stores before it; the processor orders a store and the cleaning
    // of its own address.
    unsafe {
        match method {
            // `dc cvap`, spelled so that assemblers for older processors know it.
            FlushMethod::DcCvap => {
                asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags));
            }
            _ => asm!("dc civac, {}", in(reg) line, options(nostack, preserves_flags)),
        }
    }
}

#[inline]
pub(super) fn fence(_: FlushMethod) {
    // SAFETY: waits until cache maintenance of this thread is complete.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}

pub(super) fn store_around_cache(_: &[AtomicU64], _: &[u8]) -> bool {
    false
}
