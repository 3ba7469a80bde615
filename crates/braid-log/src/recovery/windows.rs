//! Memory that holds parts of segments while recovery reads them, and while replay needs them.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use braid_io::{AlignedBuf, Device};
use braid_rt::Mutex;
use braid_rt::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Unused buffers that are kept for the next windows; a new one costs more than filling it.
const FREE_MAX: usize = 16;

/// The windows of one recovery.
#[derive(Debug)]
pub(crate) struct Windows {
    device: Arc<dyn Device>,
    free: Mutex<Vec<AlignedBuf>>,
    /// Bytes of the windows that replay will read.
    kept: AtomicUsize,
    kept_max: usize,
}

impl Windows {
    /// Creates windows of which replay may keep about `kept_max` bytes.
    pub(crate) fn new(device: Arc<dyn Device>, kept_max: usize) -> Arc<Self> {
        Arc::new(Self {
            device,
            free: Mutex::default(),
            kept: AtomicUsize::new(0),
            kept_max,
        })
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Returns a window of at least `len` bytes.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Window {
        // The smallest, so that the end of a short segment takes no long buffer.
        let free = {
            let mut free = self.free.lock();
            let fitting = free.iter().enumerate().filter(|(_, buf)| buf.len() >= len);
            let smallest = fitting.min_by_key(|(_, buf)| buf.len());
            let at = smallest.map(|(at, _)| at);
            at.map(|at| free.swap_remove(at))
        };
        Window {
            buf: Some(free.unwrap_or_else(|| self.device.allocate(len))),
            is_kept: AtomicBool::new(false),
            windows: Arc::clone(self),
        }
    }

    /// Whether replay keeps more than it may.
    pub(crate) fn is_full(&self) -> bool {
        // Relaxed: a limit that is checked after each extent.
        self.kept.load(Ordering::Relaxed) > self.kept_max
    }
}

/// A buffer that returns to its recovery's unused ones.
pub(crate) struct Window {
    /// `None` only while the window is dropped.
    buf: Option<AlignedBuf>,
    /// Whether replay keeps it.
    is_kept: AtomicBool,
    windows: Arc<Windows>,
}

impl Deref for Window {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Window {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buf.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let Some(buf) = self.buf.take() else { return };
        // Relaxed: see `is_full`.
        if *self.is_kept.get_mut() {
            self.windows.kept.fetch_sub(buf.len(), Ordering::Relaxed);
        }
        let mut free = self.windows.free.lock();
        if free.len() < FREE_MAX {
            free.push(buf);
        }
    }
}

/// Bytes of a window, which stays in memory as long as any of its slices.
#[derive(Clone)]
pub(crate) struct WindowSlice {
    window: Arc<Window>,
    at: usize,
    len: usize,
}

impl WindowSlice {
    pub(crate) fn new(window: &Arc<Window>, at: usize, len: usize) -> Self {
        debug_assert!(at + len <= window.len());
        Self {
            window: Arc::clone(window),
            at,
            len,
        }
    }

    /// Counts the window among those that replay keeps.
    pub(crate) fn keep(&self) {
        // Relaxed: see `is_full`.
        if !self.window.is_kept.swap(true, Ordering::Relaxed) {
            let kept = &self.window.windows.kept;
            kept.fetch_add(self.window.len(), Ordering::Relaxed);
        }
    }

    /// Appends `next`, if it follows in the same window.
    pub(crate) fn append(&mut self, next: &Self) -> bool {
        let follows = Arc::ptr_eq(&self.window, &next.window) && self.at + self.len == next.at;
        if follows {
            self.len += next.len;
        }
        follows
    }

    /// Returns `len` bytes at `at`.
    pub(crate) fn part(&self, at: usize, len: usize) -> Self {
        debug_assert!(at + len <= self.len);
        Self::new(&self.window, self.at + at, len)
    }
}

impl Deref for WindowSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.window[self.at..self.at + self.len]
    }
}

impl fmt::Debug for WindowSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowSlice")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use braid_io::MemoryDevice;

    use super::*;

    #[test]
    fn a_window_counts_once_until_its_last_slice_is_gone() {
        let windows = Windows::new(Arc::new(MemoryDevice::new()), 4096);
        let window = Arc::new(windows.take(8192));
        assert!(!windows.is_full());
        let mut slice = WindowSlice::new(&window, 0, 10);
        let other = slice.part(5, 5);
        slice.keep();
        other.keep();
        assert!(windows.is_full());
        assert!(!slice.append(&other) && slice.append(&WindowSlice::new(&window, 10, 7)));
        assert_eq!((slice.len(), other.len()), (17, 5));
        drop((window, slice));
        assert!(windows.is_full());
        let address = other.as_ptr().addr() - 5;
        drop(other);
        assert!(!windows.is_full());
        // The next window has the same memory, if it is large enough.
        let again = windows.take(4096);
        assert_eq!((again.as_ptr().addr(), again.len()), (address, 8192));
        drop(again);
        assert_eq!(windows.take(16384).len(), 16384);
    }
}
