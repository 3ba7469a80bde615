//! Words of memory that the controller accesses, too. In tests with `--cfg loom`, loom's atomics
//! replace them; see `loom_tests` and docs/testing.md.

use super::Host;
#[cfg(not(all(test, loom)))]
use crate::DmaBuffer;
use crate::DriveError;

#[cfg(not(all(test, loom)))]
pub(super) struct Words(DmaBuffer);

#[cfg(not(all(test, loom)))]
impl Words {
    /// Allocates words that are zero.
    pub(super) fn new(host: &impl Host, count: usize) -> Result<Self, DriveError> {
        host.allocate(count * 4).map(Self)
    }

    /// Returns the address as the controller knows it.
    pub(super) fn address(&self) -> u64 {
        self.0.as_non_null().as_ptr().addr() as u64
    }

    /// Sets all words to zero; the controller does not use them.
    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }

    fn word(&self, index: usize) -> *mut u32 {
        assert!(index < self.0.len() / 4);
        let start = self.0.as_non_null().as_ptr().cast::<u32>();
        start.wrapping_add(index)
    }

    #[inline]
    pub(super) fn load(&self, index: usize) -> u32 {
        // SAFETY: the word is in the buffer, which is aligned to a page.
        u32::from_le(unsafe { self.word(index).read_volatile() })
    }

    #[inline]
    pub(super) fn store(&mut self, index: usize, value: u32) {
        // SAFETY: as in `load`.
        unsafe { self.word(index).write_volatile(value.to_le()) }
    }
}

#[cfg(all(test, loom))]
#[derive(Clone)]
pub(super) struct Words(std::sync::Arc<[braid_loom::AtomicU32]>);

#[cfg(all(test, loom))]
impl Words {
    pub(super) fn new(_host: &impl Host, count: usize) -> Result<Self, DriveError> {
        let words = (0..count).map(|_| braid_loom::AtomicU32::new(0));
        Ok(Self(words.collect()))
    }

    pub(super) fn address(&self) -> u64 {
        0
    }

    pub(super) fn clear(&mut self) {
        unimplemented!("no model resets a controller");
    }

    pub(super) fn load(&self, index: usize) -> u32 {
        self.0[index].load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn store(&self, index: usize, value: u32) {
        self.0[index].store(value, std::sync::atomic::Ordering::Relaxed);
    }

    /// Stores a word after all stores before it, as a controller stores the phase.
    pub(super) fn publish(&self, index: usize, value: u32) {
        self.0[index].store(value, std::sync::atomic::Ordering::Release);
    }
}
