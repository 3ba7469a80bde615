//! The newest commands that took long: SLOWLOG.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

/// Most arguments that an entry keeps, and most bytes of each.
const ARGUMENTS_MAX: usize = 32;
const ARGUMENT_MAX: usize = 128;

/// A command that took long.
#[derive(Clone, Debug)]
pub(crate) struct SlowCommand {
    pub(crate) id: u64,
    /// When it had run, in seconds since 1970.
    pub(crate) time: u64,
    pub(crate) duration: Duration,
    pub(crate) args: Vec<Bytes>,
    pub(crate) peer: String,
    pub(crate) name: Bytes,
}

/// The newest slow commands, with the number of the next one.
#[derive(Debug, Default)]
pub(crate) struct SlowLog {
    state: Mutex<(u64, VecDeque<SlowCommand>)>,
}

impl SlowLog {
    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, VecDeque<SlowCommand>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command; the oldest go if there are more than `limit`.
    pub(crate) fn add(
        &self,
        args: &[Bytes],
        duration: Duration,
        peer: String,
        name: Bytes,
        limit: usize,
    ) {
        let args = shortened(args);
        let (next, entries) = &mut *self.lock();
        entries.push_front(SlowCommand {
            id: *next,
            time: braid_rt::wall_clock().as_secs(),
            duration,
            args,
            peer,
            name,
        });
        *next += 1;
        entries.truncate(limit);
    }

    /// Returns up to `count` entries, the newest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<SlowCommand> {
        self.lock().1.iter().take(count).cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().1.len()
    }

    pub(crate) fn clear(&self) {
        self.lock().1.clear();
    }
}

/// Copies arguments: an entry must not keep a large request in memory.
fn shortened(args: &[Bytes]) -> Vec<Bytes> {
    let shorten = |arg: &Bytes| {
        if arg.len() <= ARGUMENT_MAX {
            return Bytes::copy_from_slice(arg);
        }
        let mut short = arg[..ARGUMENT_MAX].to_vec();
        let rest = arg.len() - ARGUMENT_MAX;
        short.extend_from_slice(format!("... ({rest} more bytes)").as_bytes());
        short.into()
    };
    if args.len() <= ARGUMENTS_MAX {
        return args.iter().map(shorten).collect();
    }
    let mut short: Vec<Bytes> = args[..ARGUMENTS_MAX - 1].iter().map(shorten).collect();
    let rest = args.len() - short.len();
    short.push(format!("... ({rest} more arguments)").into());
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_short_and_few() {
        let log = SlowLog::default();
        let long = Bytes::from(vec![b'x'; 200]);
        let args = vec![long; 40];
        for _ in 0..5 {
            log.add(
                &args,
                Duration::from_millis(1),
                String::new(),
                Bytes::new(),
                3,
            );
        }
        let entries = log.newest(10);
        let ids: Vec<u64> = entries.iter().map(|entry| entry.id).collect();
        assert_eq!(ids, [4, 3, 2]);
        assert_eq!(entries[0].args.len(), 32);
        assert_eq!(entries[0].args[31], "... (9 more arguments)");
        assert!(entries[0].args[0].ends_with(b"x... (72 more bytes)"));
        log.clear();
        assert_eq!(log.len(), 0);
    }
}
