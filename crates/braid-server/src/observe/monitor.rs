//! Copies of all requests for the clients that sent MONITOR.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::channels::Mailbox;
use crate::resp::Reply;

/// The clients that get copies of all requests.
#[derive(Debug, Default)]
pub(crate) struct Monitors {
    mailboxes: Mutex<BTreeMap<u64, Mailbox>>,
    /// Whether there are any, which every request asks.
    any: AtomicBool,
}

impl Monitors {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Mailbox>> {
        self.mailboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, client: u64, mailbox: &Mailbox) {
        let mut mailboxes = self.lock();
        mailboxes.insert(client, mailbox.clone());
        // Relaxed: requests that run at the same time may be shown or not.
        self.any.store(true, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, client: u64) {
        let mut mailboxes = self.lock();
        mailboxes.remove(&client);
        self.any.store(!mailboxes.is_empty(), Ordering::Relaxed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Sends a request to the clients; `source` is the address of its client, or `lua`.
    pub(crate) fn show(&self, database: u32, source: &str, args: &[Bytes]) {
        let since = braid_rt::wall_clock();
        let line = line(
            since.as_secs(),
            since.subsec_micros(),
            database,
            source,
            args,
        );
        let line = Reply::Simple(line.into());
        for mailbox in self.lock().values() {
            mailbox.send(line.clone());
        }
    }
}

fn line(seconds: u64, micros: u32, database: u32, source: &str, args: &[Bytes]) -> String {
    let mut line = format!("{seconds}.{micros:06} [{database} {source}]");
    for arg in args {
        line.push_str(" \"");
        for byte in arg {
            let _ = match byte {
                b'"' | b'\\' => write!(line, "\\{}", char::from(*byte)),
                b'\n' => write!(line, "\\n"),
                b'\r' => write!(line, "\\r"),
                b'\t' => write!(line, "\\t"),
                b' '..=b'~' => write!(line, "{}", char::from(*byte)),
                byte => write!(line, "\\x{byte:02x}"),
            };
        }
        line.push('"');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted() {
        let args = [
            Bytes::from_static(b"SET"),
            Bytes::from_static(b"a \"b\"\\"),
            Bytes::from_static(b"\r\n\t\x00\xff"),
        ];
        assert_eq!(
            line(5, 42, 3, "lua", &args),
            r#"5.000042 [3 lua] "SET" "a \"b\"\\" "\r\n\t\x00\xff""#
        );
    }
}
