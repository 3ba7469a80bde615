//! Turns the signal for a lost page (SIGBUS) into damage of its mapping.
//!
//! The kernel sends SIGBUS to a thread that touches a page whose medium failed, that lies past the
//! end of its file (somebody made the file shorter), or for which the file system has no block. One
//! handler for the process looks the address up in a table of mappings. If it finds the mapping, it
//! records the page as damaged, replaces it with zeros, and lets the thread continue: the thread
//! then finds the damage in its own check. Otherwise it calls the handler that was there before.
//!
//! The handler only accesses atomics and calls `mmap`; it neither allocates nor locks.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

use crate::damage::Damage;
use crate::error::MapError;

/// Largest number of mappings in a process.
const SLOTS: usize = 256;

/// One mapping in the table. A sequence lock: the version is odd while the fields change.
///
/// The slot of a mapping does not change while the mapping exists, so the handler always finds a
/// consistent entry for the address that a thread touched. Only slots of other mappings may change,
/// and those it skips.
struct Slot {
    version: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    damage: AtomicPtr<Damage>,
}

impl Slot {
    const fn empty() -> Self {
        Self {
            version: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            damage: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Called with the lock on [`registry`].
    fn set(&self, addresses: Range<usize>, damage: *mut Damage) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the acquire fence in `find`: who sees a field of this change sees the odd
        // version.
        fence(Ordering::Release);
        self.start.store(addresses.start, Ordering::Relaxed);
        self.end.store(addresses.end, Ordering::Relaxed);
        self.damage.store(damage, Ordering::Relaxed);
        // Pairs with the acquire load in `find`.
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns the start of the mapping and its damage if it contains the address.
    fn find(&self, address: usize) -> Option<(usize, *mut Damage)> {
        // Pairs with the release store in `set`.
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let damage = self.damage.load(Ordering::Relaxed);
        // Pairs with the release fence in `set`.
        fence(Ordering::Acquire);
        let is_stable =
            version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (is_stable && (start..end).contains(&address)).then_some((start, damage))
    }
}

static SLOT_TABLE: [Slot; SLOTS] = [const { Slot::empty() }; SLOTS];

/// The handler that was there before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
/// Bytes of a page.
static PAGE_SIZE: AtomicUsize = AtomicUsize::new(4096);

/// Which slots are in use.
fn registry() -> MutexGuard<'static, [bool; SLOTS]> {
    static REGISTRY: Mutex<[bool; SLOTS]> = Mutex::new([false; SLOTS]);
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registration of a mapping, until it is dropped.
#[derive(Debug)]
pub(crate) struct Registration(usize);

impl Registration {
    /// Registers addresses and the damage to record.
    ///
    /// # Safety
    ///
    /// `damage` lives until the registration is dropped, and only a mapping of a file lies at the
    /// addresses.
    pub(crate) unsafe fn new(addresses: Range<usize>, damage: &Damage) -> Result<Self, MapError> {
        install();
        let mut used = registry();
        let free = used.iter().position(|used| !used);
        let index = free.ok_or(MapError::TooManyMappings(SLOTS))?;
        used[index] = true;
        SLOT_TABLE[index].set(addresses, ptr::from_ref(damage).cast_mut());
        Ok(Self(index))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut used = registry();
        SLOT_TABLE[self.0].set(0..0, ptr::null_mut());
        used[self.0] = false;
    }
}

/// Bytes of a page of memory.
pub(crate) fn page_size() -> usize {
    // SAFETY: reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Installs the handler, once in the life of the process.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        PAGE_SIZE.store(page_size(), Ordering::Relaxed);
        // SAFETY: a zeroed `sigaction` is valid, and both pointers are valid for the calls. The
        // handler follows the rules of signal handlers (above). `PREVIOUS` is set before the
        // handler can run.
        unsafe {
            let mut previous: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut previous);
            let _ = PREVIOUS.set(previous);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
        }
    });
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`. A positive code means that the kernel sent
    // the signal for an access, which has an address.
    let (address, is_fault) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    if is_fault && replace_page(address) {
        return;
    }
    // SAFETY: as the kernel called this handler.
    unsafe { call_previous(signal, info, context, is_fault) }
}

/// Records the page of an address as damaged and replaces it with zeros. Returns `false` if the
/// address is in no mapping.
fn replace_page(address: usize) -> bool {
    let Some((start, damage)) = SLOT_TABLE.iter().find_map(|slot| slot.find(address)) else {
        return false;
    };
    let size = PAGE_SIZE.load(Ordering::Relaxed);
    let page = address & !(size - 1);
    let offset = (page - start) as u64;
    // SAFETY: a thread is accessing the mapping, so the mapping and its damage exist.
    let damage = unsafe { &*damage };
    damage.record_fault(offset..offset + size as u64);
    // The failed call must not change what the interrupted code reads from `errno`.
    let errno = errno_of_thread();
    // SAFETY: the page belongs to a mapping of a file, which nobody can reach through this address
    // except by its atomic words. Zeros are valid words.
    let replaced = unsafe {
        libc::mmap(
            page as *mut libc::c_void,
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    // SAFETY: the pointer is valid for this thread.
    unsafe { *errno.0 = errno.1 };
    replaced != libc::MAP_FAILED
}

/// Returns the address and the value of this thread's `errno`.
fn errno_of_thread() -> (*mut libc::c_int, libc::c_int) {
    // SAFETY: the functions return a pointer that is valid for this thread.
    unsafe {
        #[cfg(any(target_os = "linux", target_os = "emscripten"))]
        let at = libc::__errno_location();
        #[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
        let at = libc::__error();
        (at, *at)
    }
}

/// Does what would have happened without this module's handler.
///
/// # Safety
///
/// The arguments are those of the handler.
unsafe fn call_previous(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    is_fault: bool,
) {
    let previous = PREVIOUS.get();
    match previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction) {
        // The kernel ignores the signal only if it does not report an access.
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: a zeroed `sigaction` with the default action is valid. The signal is blocked
            // until the handler returns, and ends the process then.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const action, ptr::null_mut());
                libc::raise(signal);
            }
        }
        function => {
            let has_info =
                previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
            // SAFETY: `sigaction` reported a function of the kind that the flag says.
            unsafe {
                if has_info {
                    type Handler =
                        extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                    std::mem::transmute::<usize, Handler>(function)(signal, info, context);
                } else {
                    type Handler = extern "C" fn(libc::c_int);
                    std::mem::transmute::<usize, Handler>(function)(signal);
                }
            }
        }
    }
}
