//! CLIENT PAUSE: requests that wait until a time, or until CLIENT UNPAUSE.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio::time::Instant;

/// Which requests wait, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) until: Instant,
    /// Whether reads wait, too.
    pub(crate) all: bool,
}

/// The pause of the server, if there is one.
#[derive(Debug)]
pub(crate) struct Pauses {
    pause: watch::Sender<Option<Pause>>,
    /// Whether there may be one, which every request asks.
    any: AtomicBool,
}

impl Default for Pauses {
    fn default() -> Self {
        Pauses {
            pause: watch::Sender::new(None),
            any: AtomicBool::new(false),
        }
    }
}

impl Pauses {
    /// Begins a pause, or extends the one that there is.
    pub(crate) fn begin(&self, new: Pause) {
        self.pause.send_modify(|pause| {
            let old = pause.filter(|old| old.until > Instant::now());
            *pause = Some(old.map_or(new, |old| Pause {
                until: old.until.max(new.until),
                all: old.all || new.all,
            }));
        });
        // Release pairs with the acquire in `current`.
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.any.store(false, Ordering::Release);
        self.pause.send_replace(None);
    }

    /// Returns the pause if it has not ended.
    pub(crate) fn current(&self) -> Option<Pause> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let pause = *self.pause.borrow();
        pause.filter(|pause| pause.until > Instant::now())
    }

    /// Waits until the pause has changed or ended.
    pub(crate) async fn changed(&self) {
        let mut changes = self.pause.subscribe();
        // Marks what there is as seen: only later changes count.
        let pause = *changes.borrow_and_update();
        let Some(pause) = pause else {
            return;
        };
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep_until(pause.until) => {}
        }
    }
}
