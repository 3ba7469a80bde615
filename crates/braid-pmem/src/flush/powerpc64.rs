//! POWER under Linux.

use core::arch::asm;
use std::sync::atomic::AtomicU64;

use super::{FlushMethod, Unsupported};

/// The bit of `AT_HWCAP2` for ISA 3.1.
const FEATURE_ARCH_3_1: u64 = 0x0004_0000;
/// Entry of the auxiliary vector: bytes of a data cache block.
const AT_DCACHEBSIZE: u64 = 19;
/// Bytes of a data cache block of every 64-bit POWER server processor.
const USUAL_LINE: usize = 128;

#[allow(
    clippy::unnecessary_wraps,
    reason = "detection fails on other processors"
)]
pub(super) fn detect() -> Result<(FlushMethod, usize), Unsupported> {
    // SAFETY: both read constants of the process.
    let (capabilities, block) = unsafe {
        (
            libc::getauxval(libc::AT_HWCAP2),
            libc::getauxval(AT_DCACHEBSIZE),
        )
    };
    Ok(select(capabilities, block))
}

/// Selects by the kernel's capabilities and the size of a cache block, 0 if it is unknown.
pub(super) fn select(capabilities: u64, block: u64) -> (FlushMethod, usize) {
    // Older processors would execute the new encodings as the old instructions, but an emulator may
    // refuse them.
    let method = if capabilities & FEATURE_ARCH_3_1 == 0 {
        FlushMethod::Dcbf
    } else {
        FlushMethod::Dcbstps
    };
    let line_size = usize::try_from(block).unwrap_or(0);
    let is_valid = line_size.is_power_of_two() && line_size >= 8;
    (method, if is_valid { line_size } else { USUAL_LINE })
}

#[inline]
pub(super) fn flush_line(method: FlushMethod, word: &AtomicU64) {
    let line = word.as_ptr();
    // SAFETY: `line` points into a live word. Writing a block back changes no memory. Without
    // `nomem`, the compiler keeps earlier stores before it.
    unsafe {
        match method {
            // `dcbstps 0, line`: `dcbf` with L = 6, in register 9.
            FlushMethod::Dcbstps => asm!(
                ".long 0x7c0000ac | (6 << 21) | (9 << 11)",
                in("r9") line,
                options(nostack, preserves_flags)
            ),
            _ => asm!("dcbf 0, {}", in(reg) line, options(nostack, preserves_flags)),
        }
    }
}

#[inline]
pub(super) fn fence(method: FlushMethod) {
    // SAFETY: orders and waits, and changes no memory.
    unsafe {
        match method {
            // `phwsync`: `sync` with L = 4.
            FlushMethod::Dcbstps => {
                asm!(
                    ".long 0x7c0004ac | (4 << 21)",
                    options(nostack, preserves_flags)
                );
            }
            _ => asm!("sync", options(nostack, preserves_flags)),
        }
    }
}

pub(super) fn store_around_cache(_: &[AtomicU64], _: &[u8]) -> bool {
    false
}
