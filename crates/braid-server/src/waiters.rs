//! Clients that wait for elements of keys.
//!
//! A client registers before it looks at the key, and a writer looks for clients after its commit.
//! So either the client finds the element, or the writer finds the client. The client that has
//! waited longest is notified first; one that finds nothing keeps its place.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// A namespace and a key in it.
type Key = (u64, Bytes);

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queues: Mutex<HashMap<Key, VecDeque<Waiter>>>,
}

#[derive(Debug)]
struct Waiter {
    client: u64,
    notify: Arc<Notify>,
    /// Whether it was notified since it last looked.
    is_notified: bool,
}

/// A client's place in the queues of its keys; leaves them when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    waiters: Arc<Waiters>,
    client: u64,
    keys: Vec<Key>,
    notify: Arc<Notify>,
}

impl Waiters {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, VecDeque<Waiter>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a client at the end of the queues of these keys.
    pub(crate) fn register(self: &Arc<Self>, client: u64, namespace: u64, keys: &[Bytes]) -> Place {
        let notify = Arc::new(Notify::new());
        let mut queues = self.lock();
        let mut registered: Vec<Key> = Vec::with_capacity(keys.len());
        for key in keys {
            let key = (namespace, key.clone());
            if registered.contains(&key) {
                continue;
            }
            queues.entry(key.clone()).or_default().push_back(Waiter {
                client,
                notify: Arc::clone(&notify),
                is_notified: false,
            });
            registered.push(key);
        }
        drop(queues);
        Place {
            waiters: Arc::clone(self),
            client,
            keys: registered,
            notify,
        }
    }

    /// Notifies as many clients as there are new elements.
    pub(crate) fn wake(&self, namespace: u64, key: &Bytes, elements: usize) {
        let mut queues = self.lock();
        if queues.is_empty() {
            return;
        }
        if let Some(queue) = queues.get_mut(&(namespace, key.clone())) {
            let waiting = queue.iter_mut().filter(|waiter| !waiter.is_notified);
            for waiter in waiting.take(elements) {
                waiter.is_notified = true;
                waiter.notify.notify_one();
            }
        }
    }

    /// Returns the number of clients that wait.
    pub(crate) fn len(&self) -> usize {
        let queues = self.lock();
        let mut clients: Vec<u64> = queues
            .values()
            .flatten()
            .map(|waiter| waiter.client)
            .collect();
        clients.sort_unstable();
        clients.dedup();
        clients.len()
    }
}

impl Place {
    /// Waits until a writer has new elements for this client.
    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }

    /// Says that the client will look again: the next elements notify it again.
    pub(crate) fn rearm(&self) {
        let mut queues = self.waiters.lock();
        for key in &self.keys {
            if let Some(queue) = queues.get_mut(key) {
                for waiter in queue
                    .iter_mut()
                    .filter(|waiter| waiter.client == self.client)
                {
                    waiter.is_notified = false;
                }
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = self.waiters.lock();
        for key in &self.keys {
            let Some(queue) = queues.get_mut(key) else {
                continue;
            };
            let was_notified = queue
                .iter()
                .any(|waiter| waiter.client == self.client && waiter.is_notified);
            queue.retain(|waiter| waiter.client != self.client);
            // The client may leave without the element that it was notified of.
            if was_notified && let Some(next) = queue.iter_mut().find(|waiter| !waiter.is_notified)
            {
                next.is_notified = true;
                next.notify.notify_one();
            }
            if queue.is_empty() {
                queues.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_client_that_waited_longest_is_first_and_passes_it_on() {
        let waiters = Arc::new(Waiters::default());
        let keys = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        let first = waiters.register(1, 0, &keys);
        let second = waiters.register(2, 0, &keys[..1]);
        waiters.wake(0, &keys[0], 1);
        first.notified().await;
        drop(first);
        second.notified().await;
        drop(second);
        assert_eq!(waiters.len(), 0);
        assert!(waiters.lock().is_empty());
    }
}
