//! Channels of PUBLISH and SUBSCRIBE.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::glob::matches;
use crate::resp::Reply;

/// Kind of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Topic {
    Channel,
    Pattern,
    Shard,
}

/// Messages to a connection, counted in bytes.
///
/// Nearly all connections get none, so an empty mailbox holds no memory for messages: tokio's channel
/// takes two KiB for each connection.
#[derive(Debug)]
struct Post {
    /// Weight of the messages, which is added before a message is queued.
    queued: AtomicUsize,
    limit: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Reply>,
    /// Wakes the reader, which waits for the next message.
    reader: Option<Waker>,
    /// Whether the reader is gone.
    is_closed: bool,
}

impl Post {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of memory that a mailbox without messages takes.
#[cfg(test)]
pub(crate) const EMPTY_MAILBOX: usize = size_of::<Post>();

/// The sending end of a connection's messages.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox(Arc<Post>);

/// The receiving end of a mailbox.
#[derive(Debug)]
pub(crate) struct Inbox {
    post: Arc<Post>,
    /// Whether the next message wakes the reader.
    is_registered: bool,
}

/// Returns both ends of a mailbox that holds about `limit` bytes.
pub(crate) fn mailbox(limit: usize) -> (Mailbox, Inbox) {
    let post = Arc::new(Post {
        queued: AtomicUsize::new(0),
        limit,
        queue: Mutex::default(),
    });
    let inbox = Inbox {
        post: Arc::clone(&post),
        is_registered: false,
    };
    (Mailbox(post), inbox)
}

impl Mailbox {
    /// Sends a message; returns whether the reader gets it.
    pub(crate) fn send(&self, message: Reply) -> bool {
        // Relaxed: an approximate bound; the lock orders the messages.
        let before = self.0.queued.fetch_add(message.weight(), Ordering::Relaxed);
        // A reader that is too slow gets nothing more, and its connection ends.
        if before > self.0.limit {
            return false;
        }
        let mut queue = self.0.lock();
        if queue.is_closed {
            return false;
        }
        queue.messages.push_back(message);
        let reader = queue.reader.take();
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
        true
    }
}

impl Inbox {
    /// Waits for a message; `None` if the reader has been too slow. Only one task may do so.
    pub(crate) fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Option<Reply>> {
        // The queue keeps the waker until there is a message, which was counted before.
        if self.is_registered && self.post.queued.load(Ordering::Relaxed) == 0 {
            return Poll::Pending;
        }
        let mut queue = self.post.lock();
        let Some(message) = queue.take() else {
            queue.reader = Some(context.waker().clone());
            self.is_registered = true;
            return Poll::Pending;
        };
        drop(queue);
        self.is_registered = false;
        Poll::Ready(self.accept(message))
    }

    /// Returns a message if there is one.
    pub(crate) fn try_receive(&mut self) -> Option<Reply> {
        let message = self.post.lock().take()?;
        self.accept(message)
    }

    pub(crate) fn has_overflowed(&self) -> bool {
        self.post.queued.load(Ordering::Relaxed) > self.post.limit
    }

    /// Subtracts a message from the count; `None` if the reader has been too slow.
    fn accept(&self, message: Reply) -> Option<Reply> {
        if self.has_overflowed() {
            return None;
        }
        let queued = &self.post.queued;
        queued.fetch_sub(message.weight(), Ordering::Relaxed);
        Some(message)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut queue = self.post.lock();
        *queue = Queue {
            is_closed: true,
            ..Queue::default()
        };
    }
}

impl Queue {
    /// Removes the oldest message, and with the last one the memory for messages.
    fn take(&mut self) -> Option<Reply> {
        let message = self.messages.pop_front();
        if self.messages.is_empty() {
            self.messages = VecDeque::new();
        }
        message
    }
}

type Subscribers = BTreeMap<u64, Mailbox>;

/// All subscriptions of the server.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    topics: Mutex<HashMap<(Topic, Bytes), Subscribers>>,
}

impl Channels {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(Topic, Bytes), Subscribers>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscribe(&self, topic: Topic, name: &Bytes, client: u64, mailbox: &Mailbox) {
        let mut topics = self.lock();
        let subscribers = topics.entry((topic, name.clone())).or_default();
        subscribers.insert(client, mailbox.clone());
    }

    pub(crate) fn unsubscribe(&self, topic: Topic, name: &Bytes, client: u64) {
        let mut topics = self.lock();
        let key = (topic, name.clone());
        if let Some(subscribers) = topics.get_mut(&key) {
            subscribers.remove(&client);
            if subscribers.is_empty() {
                topics.remove(&key);
            }
        }
    }

    /// Sends a message to the subscribers of a channel and of the patterns that match it; returns
    /// how many there were.
    pub(crate) fn publish(&self, topic: Topic, channel: &Bytes, message: &Bytes) -> usize {
        let topics = self.lock();
        if topics.is_empty() {
            return 0;
        }
        // A slow reader counts the bytes of a message, and must not hold the shared memory of a request.
        let (channel, message) = &copies(channel, message);
        let mut receivers = 0;
        let word = if topic == Topic::Shard {
            "smessage"
        } else {
            "message"
        };
        if let Some(subscribers) = topics.get(&(topic, channel.clone())) {
            for mailbox in subscribers.values() {
                let parts = [
                    Bytes::from_static(word.as_bytes()),
                    channel.clone(),
                    message.clone(),
                ];
                receivers += usize::from(mailbox.send(push(parts)));
            }
        }
        if topic == Topic::Channel {
            for ((kind, pattern), subscribers) in &*topics {
                if *kind != Topic::Pattern || !matches(pattern, channel) {
                    continue;
                }
                for mailbox in subscribers.values() {
                    let parts = [
                        Bytes::from_static(b"pmessage"),
                        pattern.clone(),
                        channel.clone(),
                        message.clone(),
                    ];
                    receivers += usize::from(mailbox.send(push(parts)));
                }
            }
        }
        receivers
    }

    /// Returns how many subscribers a message would have.
    #[cfg(feature = "scripts")]
    pub(crate) fn receivers(&self, topic: Topic, channel: &Bytes) -> usize {
        let topics = self.lock();
        let matching = topics.iter().filter(|((kind, name), _)| {
            let is_pattern = topic == Topic::Channel && *kind == Topic::Pattern;
            (*kind == topic && name == channel) || (is_pattern && matches(name, channel))
        });
        matching.map(|(_, subscribers)| subscribers.len()).sum()
    }

    /// Returns the channels with subscribers that match a pattern.
    pub(crate) fn names(&self, topic: Topic, pattern: Option<&Bytes>) -> Vec<Bytes> {
        let topics = self.lock();
        topics
            .keys()
            .filter(|(kind, name)| {
                *kind == topic && pattern.is_none_or(|pattern| matches(pattern, name))
            })
            .map(|(_, name)| name.clone())
            .collect()
    }

    pub(crate) fn subscribers(&self, topic: Topic, name: &Bytes) -> usize {
        self.lock()
            .get(&(topic, name.clone()))
            .map_or(0, BTreeMap::len)
    }
}

/// Returns copies in memory of their own.
fn copies(channel: &[u8], message: &[u8]) -> (Bytes, Bytes) {
    (
        Bytes::copy_from_slice(channel),
        Bytes::copy_from_slice(message),
    )
}

fn push(parts: impl IntoIterator<Item = Bytes>) -> Reply {
    Reply::Push(parts.into_iter().map(Reply::Bulk).collect())
}
