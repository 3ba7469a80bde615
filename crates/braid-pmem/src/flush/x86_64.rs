//! x86-64.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, _mm_clflush, _mm_sfence, _mm_stream_si64};
use std::sync::atomic::AtomicU64;

use super::{FlushMethod, Unsupported};

pub(super) fn detect() -> Result<(FlushMethod, usize), Unsupported> {
    // SAFETY: every x86-64 processor has `cpuid`; leaf 7 is read only if it exists.
    #[allow(unused_unsafe, reason = "newer compilers know that it is safe")]
    let (first, extended) = unsafe {
        let last_leaf = __cpuid(0).eax;
        let extended = if last_leaf >= 7 {
            __cpuid_count(7, 0).ebx
        } else {
            0
        };
        (__cpuid(1), extended)
    };
    select(first.edx, first.ebx, extended)
}

/// Selects by CPUID: registers EDX and EBX of leaf 1, EBX of leaf 7.
pub(super) fn select(
    edx: u32,
    ebx: u32,
    extended: u32,
) -> Result<(FlushMethod, usize), Unsupported> {
    let has = |register: u32, bit: u32| register >> bit & 1 == 1;
    if !has(edx, 19) {
        return Err(Unsupported);
    }
    let method = if has(extended, 24) {
        FlushMethod::Clwb
    } else if has(extended, 23) {
        FlushMethod::ClflushOpt
    } else {
        FlushMethod::Clflush
    };
    let line_size = (ebx >> 8 & 0xff) as usize * 8;
    if !line_size.is_power_of_two() || line_size < 16 {
        return Err(Unsupported);
    }
    Ok((method, line_size))
}

#[inline]
pub(super) fn flush_line(method: FlushMethod, word: &AtomicU64) {
    let line = word.as_ptr().cast::<u8>();
    // SAFETY: `line` points into a live word, and CPUID reported the instruction. Writing a line
    // back changes no memory. Without `nomem`, the compiler keeps earlier stores before it.
    unsafe {
        match method {
            FlushMethod::Clwb => {
                asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
            }
            FlushMethod::ClflushOpt => {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            }
            _ => _mm_clflush(line),
        }
    }
}

#[inline]
pub(super) fn fence(_: FlushMethod) {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { _mm_sfence() }
}

/// Stores words that fill whole lines with `movnti`.
pub(super) fn store_around_cache(words: &[AtomicU64], bytes: &[u8]) -> bool {
    assert_eq!(size_of_val(words), bytes.len());
    for (word, bytes) in words.iter().zip(bytes.chunks_exact(8)) {
        let value = i64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        // SAFETY: the word is live and aligned, and atomic: other threads may access it. The
        // processor stores eight aligned bytes at once.
        unsafe { _mm_stream_si64(word.as_ptr().cast(), value) }
    }
    // Such stores are weakly ordered, also with a later release store. The fence restores what
    // Rust's memory model promises to other threads.
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { _mm_sfence() }
    true
}
