//! Events of a database, emitted through the facade `tracing` if the feature of this name is
//! enabled. If it is not, this module costs nothing.
//!
//! | name | level | fields |
//! |---|---|---|
//! | span `recovery` | info | |
//! | `log scanned` | info | `bytes`, `seconds` |
//! | `log replayed` | info | `transactions`, `discarded`, `seconds` |
//! | span `checkpoint` | info | |
//! | `checkpoint published` | info | `seqno`, `pages`, `seconds` |
//! | `checkpoint failed` | error | `error` |
//! | `slow commit` | warn | `seqno`, `seconds` |
//! | `poisoned` | error | `cause` |
//! | `memory node missing` | warn | `tablespace`, `node` |
//! | `stats file not written` | warn | `error` |
//! | `user code panicked` | error | `what`, `message` |
//!
//! If a subscriber panics, the event is lost, and the engine continues.

#[cfg(feature = "tracing")]
pub(crate) use on::*;

#[cfg(not(feature = "tracing"))]
pub(crate) use off::*;

#[cfg(feature = "tracing")]
mod on {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use braid_log::SeqNo;
    use tracing::span::EnteredSpan;
    use tracing::{error, info, info_span, warn};

    use crate::error::Error;

    /// Passes an event to the subscriber, which is user code. Only the panic hook reports its
    /// panic.
    fn emit(event: impl FnOnce()) {
        let _ = braid_rt::call_user(event);
    }

    /// Calls user code on a thread of the engine. A panic is caught and reported.
    pub(crate) fn call_user<R>(what: &str, code: impl FnOnce() -> R) -> Option<R> {
        let outcome = braid_rt::call_user(code);
        outcome
            .inspect_err(|message| {
                emit(|| error!(target: "braid", what, message, "user code panicked"));
            })
            .ok()
    }

    /// Measures the time of a commit if slow commits are reported.
    #[derive(Clone, Copy)]
    pub(crate) struct CommitClock(Option<(Duration, Instant)>);

    impl CommitClock {
        #[inline]
        pub(crate) fn start(slow: Option<Duration>) -> Self {
            Self(slow.map(|slow| (slow, braid_rt::now())))
        }

        #[inline]
        pub(crate) fn stop(self, seqno: SeqNo) {
            if let Some((slow, began)) = self.0 {
                let took = braid_rt::now() - began;
                if took >= slow {
                    let seconds = took.as_secs_f64();
                    emit(|| warn!(target: "braid", seqno = seqno.get(), seconds, "slow commit"));
                }
            }
        }
    }

    /// Span of a recovery or a checkpoint.
    pub(crate) struct Phase {
        began: Instant,
        span: Option<EnteredSpan>,
    }

    impl Drop for Phase {
        fn drop(&mut self) {
            let span = self.span.take();
            emit(|| drop(span));
        }
    }

    impl Phase {
        pub(crate) fn recovery() -> Self {
            Self::new(|| info_span!(target: "braid", "recovery"))
        }

        pub(crate) fn checkpoint() -> Self {
            Self::new(|| info_span!(target: "braid", "checkpoint"))
        }

        fn new(span: impl FnOnce() -> tracing::Span) -> Self {
            Self {
                began: braid_rt::now(),
                span: braid_rt::call_user(|| span().entered()).ok(),
            }
        }

        fn seconds(&self) -> f64 {
            (braid_rt::now() - self.began).as_secs_f64()
        }

        pub(crate) fn scanned(&self, bytes: u64) {
            let seconds = self.seconds();
            emit(|| info!(target: "braid", bytes, seconds, "log scanned"));
        }

        pub(crate) fn replayed(&self, transactions: u64, discarded: u64) {
            let seconds = self.seconds();
            emit(|| info!(target: "braid", transactions, discarded, seconds, "log replayed"));
        }

        pub(crate) fn published(&self, seqno: SeqNo, pages: u64) {
            let seconds = self.seconds();
            emit(
                || info!(target: "braid", seqno = seqno.get(), pages, seconds, "checkpoint published"),
            );
        }

        pub(crate) fn failed(&self, error: &Error) {
            emit(|| error!(target: "braid", %error, "checkpoint failed"));
        }
    }

    /// Reports a poisoning once.
    #[derive(Debug, Default)]
    pub(crate) struct PoisonReported(AtomicBool);

    impl PoisonReported {
        pub(crate) fn tell(&self, cause: Option<&str>) {
            // Relaxed: the flag orders nothing.
            if let Some(cause) = cause
                && !self.0.swap(true, Ordering::Relaxed)
            {
                emit(|| error!(target: "braid", cause, "poisoned"));
            }
        }
    }

    pub(crate) fn memory_node_is_missing(tablespace: &str, node: u16) {
        emit(|| warn!(target: "braid", tablespace, node, "memory node missing"));
    }

    pub(crate) fn stats_file_failed(error: &io::Error) {
        emit(|| warn!(target: "braid", %error, "stats file not written"));
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use std::io;
    use std::time::Duration;

    use braid_log::SeqNo;

    use crate::error::Error;

    /// Calls user code on a thread of the engine. A panic is caught; the panic hook has reported
    /// it.
    pub(crate) fn call_user<R>(_what: &str, code: impl FnOnce() -> R) -> Option<R> {
        braid_rt::call_user(code).ok()
    }

    #[derive(Clone, Copy)]
    pub(crate) struct CommitClock;

    impl CommitClock {
        #[inline]
        pub(crate) fn start(_slow: Option<Duration>) -> Self {
            Self
        }

        #[inline]
        pub(crate) fn stop(self, _seqno: SeqNo) {}
    }

    pub(crate) struct Phase;

    impl Phase {
        pub(crate) fn recovery() -> Self {
            Self
        }

        pub(crate) fn checkpoint() -> Self {
            Self
        }

        pub(crate) fn scanned(&self, _bytes: u64) {}

        pub(crate) fn replayed(&self, _transactions: u64, _discarded: u64) {}

        pub(crate) fn published(&self, _seqno: SeqNo, _pages: u64) {}

        pub(crate) fn failed(&self, _error: &Error) {}
    }

    #[derive(Debug, Default)]
    pub(crate) struct PoisonReported(());

    impl PoisonReported {
        pub(crate) fn tell(&self, _cause: Option<&str>) {}
    }

    pub(crate) fn memory_node_is_missing(_tablespace: &str, _node: u16) {}

    pub(crate) fn stats_file_failed(_error: &io::Error) {}
}
