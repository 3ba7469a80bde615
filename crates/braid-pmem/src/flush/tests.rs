use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// Words in memory of this process whose first starts a line, whatever its size.
struct Memory(Box<[AtomicU64]>, usize);

impl Memory {
    fn new() -> Self {
        let words: Box<[_]> = (0..512).map(|_| AtomicU64::new(0)).collect();
        let first = words.as_ptr().addr();
        let skip = (first.next_multiple_of(1024) - first) / 8;
        Self(words, skip)
    }

    fn words(&self) -> &[AtomicU64] {
        &self.0[self.1..self.1 + 256]
    }
}

fn flusher() -> Option<Flusher> {
    let flusher = Flusher::detect();
    let is_known = cfg!(all(
        not(miri),
        any(
            target_arch = "x86_64",
            all(
                target_os = "linux",
                any(target_arch = "aarch64", target_arch = "powerpc64")
            )
        )
    ));
    assert_eq!(flusher.is_ok(), is_known);
    flusher.ok()
}

#[test]
fn each_line_of_a_range_is_flushed_once() {
    let Some(flusher) = flusher() else { return };
    let memory = Memory::new();
    let words = memory.words();
    let per_line = flusher.line_size() / 8;
    assert_eq!(flusher.flush(&words[..0]), 0);
    assert_eq!(flusher.flush(&words[..1]), 1);
    assert_eq!(flusher.flush(&words[..per_line]), 1);
    assert_eq!(flusher.flush(&words[..=per_line]), 2);
    assert_eq!(flusher.flush(&words[per_line - 1..=per_line]), 2);
    assert_eq!(flusher.flush(&words[1..3 * per_line]), 3);
    flusher.fence();
}

/// Every method of this processor's family that the processor can execute.
fn methods(flusher: Flusher) -> Vec<Flusher> {
    let older = match flusher.method() {
        FlushMethod::Clwb => vec![FlushMethod::ClflushOpt, FlushMethod::Clflush],
        FlushMethod::ClflushOpt => vec![FlushMethod::Clflush],
        FlushMethod::DcCvap => vec![FlushMethod::DcCivac],
        FlushMethod::Dcbstps => vec![FlushMethod::Dcbf],
        _ => vec![],
    };
    let older = older
        .into_iter()
        .map(|method| Flusher { method, ..flusher });
    let none = flusher.for_domain(PersistenceDomain::Caches);
    [flusher, none].into_iter().chain(older).collect()
}

#[test]
fn flushing_changes_no_byte() {
    let Some(flusher) = flusher() else { return };
    let memory = Memory::new();
    for flusher in methods(flusher) {
        for (index, word) in memory.words().iter().enumerate() {
            word.store(index as u64 + 7, Ordering::Relaxed);
        }
        let lines = flusher.flush(memory.words());
        assert_eq!(lines, (256 * 8 / flusher.line_size()) as u64, "{flusher:?}");
        flusher.fence();
        for (index, word) in memory.words().iter().enumerate() {
            assert_eq!(word.load(Ordering::Relaxed), index as u64 + 7);
        }
    }
}

#[test]
fn whole_lines_are_stored_around_the_cache_and_no_other() {
    let Some(flusher) = flusher() else { return };
    let per_line = flusher.line_size() / 8;
    for (start, lines) in [(0, 1), (1, 1), (0, 4), (2, 0)] {
        let memory = Memory::new();
        let bytes: Vec<u8> = (0..lines * flusher.line_size())
            .map(|at| (at * 7 + 1) as u8)
            .collect();
        let words = &memory.words()[start * per_line..(start + lines) * per_line];
        assert_eq!(flusher.store_lines(words, &bytes), lines as u64);
        flusher.fence();
        let mut expected = vec![0; 256 * 8];
        expected[start * flusher.line_size()..][..bytes.len()].copy_from_slice(&bytes);
        let mut found = vec![0; 256 * 8];
        crate::words::load(memory.words(), 0, &mut found);
        assert_eq!(found, expected);
    }
}

#[test]
fn every_method_has_a_code_of_its_own() {
    for method in FlushMethod::ALL {
        assert_eq!(FlushMethod::from_code(method.code()), Some(method));
    }
    assert_eq!(FlushMethod::from_code(0), None);
    assert_eq!(FlushMethod::from_code(11), None);
    // The codes are stored in regions.
    assert_eq!(FlushMethod::Clwb.code(), 2);
    assert_eq!(FlushMethod::Dcbf.code(), 8);
    assert_eq!(FlushMethod::Simulated.code(), 10);
}

#[test]
fn caches_persist_only_if_every_region_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let read = || PersistenceDomain::read_from(directory.path());
    assert_eq!(read(), PersistenceDomain::Memory);
    let region = |name: &str, domain: &str| {
        let region = directory.path().join(name);
        fs::create_dir_all(&region).unwrap();
        fs::write(region.join("persistence_domain"), domain).unwrap();
    };
    region("region0", "cpu_cache\n");
    region("ndbus0", "memory_controller\n");
    assert_eq!(read(), PersistenceDomain::Caches);
    region("region1", "memory_controller\n");
    assert_eq!(read(), PersistenceDomain::Memory);
    region("region1", "cpu_cache\n");
    assert_eq!(read(), PersistenceDomain::Caches);
    fs::remove_file(directory.path().join("region1/persistence_domain")).unwrap();
    assert_eq!(read(), PersistenceDomain::Memory);
    assert_eq!(
        PersistenceDomain::read_from(&directory.path().join("none")),
        PersistenceDomain::Memory
    );
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn the_best_instruction_of_an_x86_processor_is_selected() {
    use super::instructions::select;
    const CLFLUSH: u32 = 1 << 19;
    const CLFLUSHOPT: u32 = 1 << 23;
    const CLWB: u32 = 1 << 24;
    let line = 8 << 8;
    let selected = |extended| select(CLFLUSH, line, extended);
    assert_eq!(selected(CLWB | CLFLUSHOPT), Ok((FlushMethod::Clwb, 64)));
    assert_eq!(selected(CLFLUSHOPT), Ok((FlushMethod::ClflushOpt, 64)));
    assert_eq!(selected(0), Ok((FlushMethod::Clflush, 64)));
    assert_eq!(select(0, line, CLWB), Err(Unsupported));
    assert_eq!(select(CLFLUSH, 0, CLWB), Err(Unsupported));
}

#[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
#[test]
fn the_best_instruction_of_an_arm_processor_is_selected() {
    use super::instructions::select;
    assert_eq!(select(1 << 16, 4 << 16), (FlushMethod::DcCvap, 64));
    assert_eq!(select(0, 5 << 16), (FlushMethod::DcCivac, 128));
}

#[cfg(all(target_arch = "powerpc64", target_os = "linux", not(miri)))]
#[test]
fn the_best_instruction_of_a_power_processor_is_selected() {
    use super::instructions::select;
    assert_eq!(select(0x0004_0000, 128), (FlushMethod::Dcbstps, 128));
    assert_eq!(select(0, 64), (FlushMethod::Dcbf, 64));
    assert_eq!(select(0, 0), (FlushMethod::Dcbf, 128));
}
