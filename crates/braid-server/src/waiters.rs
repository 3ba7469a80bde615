//! Clients that wait for elements of keys.
//!
//! A client registers before it looks at the key, and a writer looks for clients after its commit.
//! So either the client finds the element, or the writer finds the client. The client that has
//! waited longest is notified first; one that finds nothing keeps its place.
//!
//! Keys are named by the number of their database, so a client that waits while SWAPDB exchanges
//! two databases waits for elements of the data that is there afterwards.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::failure::Interest;
use crate::keyspace::{Arrival, Kind};

/// The number of a database and a key in it.
type Key = (u32, Bytes);

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queues: Mutex<HashMap<Key, VecDeque<Waiter>>>,
}

#[derive(Debug)]
struct Waiter {
    client: u64,
    interest: Interest,
    notify: Arc<Notify>,
    /// Whether it was notified since it last looked.
    is_notified: bool,
}

impl Waiter {
    fn notify(&mut self) {
        self.is_notified = true;
        self.notify.notify_one();
    }
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
    pub(crate) fn register(
        self: &Arc<Self>,
        client: u64,
        database: u32,
        keys: &[Bytes],
        interest: &Interest,
    ) -> Place {
        let notify = Arc::new(Notify::new());
        let mut queues = self.lock();
        let mut registered: Vec<Key> = Vec::with_capacity(keys.len());
        for key in keys {
            let key = (database, key.clone());
            if registered.contains(&key) {
                continue;
            }
            queues.entry(key.clone()).or_default().push_back(Waiter {
                client,
                interest: interest.clone(),
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

    /// Notifies clients of what has arrived: as many as there are new elements; all that wait for
    /// entries of a stream, and the first of each of its groups.
    pub(crate) fn wake(&self, arrivals: &[Arrival]) {
        if arrivals.is_empty() {
            return;
        }
        let mut queues = self.lock();
        if queues.is_empty() {
            return;
        }
        for arrival in arrivals {
            match arrival {
                Arrival::Elements { key, kind, count } => {
                    if let Some(queue) = queues.get_mut(key) {
                        wake_for_elements(queue, *kind, *count);
                    }
                }
                Arrival::Left { key, group } => {
                    let queue = queues.get_mut(key);
                    let mut readers = queue.into_iter().flatten().filter(
                        |waiter| matches!(&waiter.interest, Interest::Group(of) if of == group),
                    );
                    if let Some(first) = readers.next() {
                        first.notify();
                    }
                }
                Arrival::Gone { key } => {
                    for waiter in queues.get_mut(key).into_iter().flatten() {
                        if matches!(waiter.interest, Interest::Group(_)) {
                            waiter.notify();
                        }
                    }
                }
                Arrival::Database(database) => {
                    let inside = queues.iter_mut().filter(|((of, _), _)| of == database);
                    for waiter in inside.flat_map(|(_, queue)| queue) {
                        waiter.notify();
                    }
                }
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

/// Notifies the clients of one key of `count` new elements.
fn wake_for_elements(queue: &mut VecDeque<Waiter>, kind: Kind, mut count: usize) {
    let mut groups = HashSet::new();
    for waiter in queue {
        match &waiter.interest {
            Interest::Elements(of) if *of == kind && count > 0 && !waiter.is_notified => {
                waiter.notify();
                count -= 1;
            }
            Interest::Entries if kind == Kind::Stream => waiter.notify(),
            // The first reader of a group notifies the next if it leaves entries.
            Interest::Group(group) if kind == Kind::Stream && groups.insert(group.clone()) => {
                waiter.notify();
            }
            _ => {}
        }
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
            let Some(own) = queue
                .iter()
                .position(|waiter| waiter.client == self.client)
                .and_then(|at| queue.remove(at))
            else {
                continue;
            };
            // The client may leave without the element that it was notified of.
            let next = queue
                .iter_mut()
                .find(|waiter| !waiter.is_notified && waiter.interest == own.interest);
            if own.is_notified
                && let Some(next) = next
            {
                next.notify();
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

    const LIST: Interest = Interest::Elements(Kind::List);

    fn elements(key: &Bytes, kind: Kind, count: usize) -> Arrival {
        let key = (0, key.clone());
        Arrival::Elements { key, kind, count }
    }

    /// Returns which of the places were notified.
    fn notified(waiters: &Waiters, key: &Bytes) -> Vec<u64> {
        let queues = waiters.lock();
        let queue = queues[&(0, key.clone())].iter();
        let notified = queue.filter(|waiter| waiter.is_notified);
        notified.map(|waiter| waiter.client).collect()
    }

    #[tokio::test]
    async fn the_client_that_waited_longest_is_first_and_passes_it_on() {
        let waiters = Arc::new(Waiters::default());
        let keys = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        let first = waiters.register(1, 0, &keys, &LIST);
        let second = waiters.register(2, 0, &keys[..1], &LIST);
        waiters.wake(&[elements(&keys[0], Kind::SortedSet, 1)]);
        assert!(notified(&waiters, &keys[0]).is_empty());
        waiters.wake(&[elements(&keys[0], Kind::List, 1)]);
        assert_eq!(notified(&waiters, &keys[0]), [1]);
        first.notified().await;
        drop(first);
        second.notified().await;
        drop(second);
        assert_eq!(waiters.len(), 0);
        assert!(waiters.lock().is_empty());
    }

    #[test]
    fn every_reader_of_a_stream_and_the_first_of_each_group_are_notified() {
        let waiters = Arc::new(Waiters::default());
        let keys = [Bytes::from_static(b"s")];
        let group = |name: &'static str| Interest::Group(Bytes::from_static(name.as_bytes()));
        let mut places = Vec::new();
        for (client, interest) in [
            (1, group("g")),
            (2, Interest::Entries),
            (3, LIST),
            (4, group("g")),
            (5, group("h")),
            (6, Interest::Entries),
        ] {
            places.push(waiters.register(client, 0, &keys, &interest));
        }
        for _ in 0..2 {
            // The first of a group that has not looked yet will find both entries.
            waiters.wake(&[elements(&keys[0], Kind::Stream, 1)]);
            assert_eq!(notified(&waiters, &keys[0]), [1, 2, 5, 6]);
        }
        places.remove(0);
        assert_eq!(notified(&waiters, &keys[0]), [2, 4, 5, 6]);
        places.iter().for_each(Place::rearm);
        let key = (0, keys[0].clone());
        let left = Bytes::from_static(b"g");
        waiters.wake(&[Arrival::Left {
            key: key.clone(),
            group: left,
        }]);
        assert_eq!(notified(&waiters, &keys[0]), [4]);
        waiters.wake(&[Arrival::Gone { key }]);
        assert_eq!(notified(&waiters, &keys[0]), [4, 5]);
        waiters.wake(&[Arrival::Database(1)]);
        assert_eq!(notified(&waiters, &keys[0]), [4, 5]);
        waiters.wake(&[Arrival::Database(0)]);
        assert_eq!(notified(&waiters, &keys[0]), [2, 3, 4, 5, 6]);
    }
}
