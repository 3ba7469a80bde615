//! State that all connections share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::acl::{Acl, Knows, User};
use crate::backups::Backups;
use crate::channels::{Channels, Mailbox, Topic};
use crate::keyspace::{Effects, Event, Keyspace};
use crate::observe::{Activities, CommandStatistics, ErrorStatistics, Monitors, SlowLog, Spikes};
use crate::options::ServerOptions;
use crate::pause::Pauses;
#[cfg(feature = "scripts")]
use crate::script::Scripts;
use crate::tracking::Tracking;
use crate::waiters::Waiters;

/// Counters of what happens rarely; [`Activities`] has the others.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) expired: AtomicU64,
}

/// What CLIENT LIST shows of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientInfo {
    pub(crate) name: Bytes,
    pub(crate) library: (Bytes, Bytes),
    pub(crate) database: u32,
    pub(crate) last_command: &'static str,
    pub(crate) last_active: Option<Instant>,
    pub(crate) channels: usize,
    pub(crate) shards: usize,
    pub(crate) queued: Option<usize>,
    pub(crate) watched: usize,
    pub(crate) protocol: i64,
    pub(crate) is_blocked: bool,
    /// Whether the client learns of changes of all keys with certain prefixes, and which client gets
    /// the messages; `None` if it is told nothing.
    pub(crate) tracking: Option<(bool, Option<u64>)>,
}

/// A signal to the task of a connection, which waits for it whenever it waits: it leaves its waker only
/// once.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_set: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Signal {
    /// Ends the task's wait, or its next one.
    pub(crate) fn notify(&self) {
        // SeqCst on both sides: either this thread sees the waker, or the task the flag.
        self.is_set.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Waits for the signal. Only one task may do so.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if self.waker.get().is_none() {
            self.waker.get_or_init(|| context.waker().clone());
            // Pairs with the fence in `notify`. A later call that finds no flag needs none: `notify` sees
            // the waker then, and has the task polled again.
            fence(Ordering::SeqCst);
        }
        // The swap would write each time.
        if self.is_set.load(Ordering::SeqCst) && self.is_set.swap(false, Ordering::SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// How other connections see a connection, and end it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) peer: String,
    pub(crate) local: String,
    pub(crate) since: Instant,
    /// Messages to the connection.
    pub(crate) mailbox: Mailbox,
    /// User of the connection.
    pub(crate) user: Mutex<Arc<User>>,
    /// State as of the last command.
    pub(crate) info: Mutex<ClientInfo>,
    /// Ends the connection; while the server stops, after its replies.
    pub(crate) kill: Signal,
    /// Ends a wait for elements.
    pub(crate) unblock: Notify,
    /// Whether the ended wait is answered with an error.
    pub(crate) unblock_fails: AtomicBool,
}

impl Client {
    pub(crate) fn user(&self) -> Arc<User> {
        Arc::clone(&self.user.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Durations from which on something is noted. Every command asks for them, so they are apart from the
/// options.
#[derive(Debug, Default)]
pub(crate) struct Thresholds {
    /// Nanoseconds from which on a command is slow; `u64::MAX` for never.
    slow: AtomicU64,
    /// Nanoseconds from which on LATENCY has an event; 0 for never.
    spike: AtomicU64,
}

/// Returns a duration in nanoseconds, of which 64 bits are enough for centuries.
fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::from(duration.subsec_nanos()))
}

impl Thresholds {
    fn set(&self, options: &ServerOptions) {
        let slow = options.slowlog_log_slower_than.map_or(u64::MAX, nanos);
        // Relaxed: commands that run at the same time may still have the old ones.
        self.slow.store(slow, Ordering::Relaxed);
        self.spike
            .store(nanos(options.latency_monitor_threshold), Ordering::Relaxed);
    }

    /// Returns whether a command that took this long is slow.
    pub(crate) fn is_slow(&self, duration: Duration) -> bool {
        nanos(duration) > self.slow.load(Ordering::Relaxed)
    }

    /// Returns whether a command that took this long is slow, or LATENCY has an event of it.
    pub(crate) fn concern(&self, duration: Duration) -> bool {
        let spike = self.spike.load(Ordering::Relaxed);
        self.is_slow(duration) || (spike > 0 && nanos(duration) >= spike)
    }

    pub(crate) fn spike(&self) -> Duration {
        Duration::from_nanos(self.spike.load(Ordering::Relaxed))
    }
}

/// Returns whether any event is published: without a kind of channel none is.
fn wants_events(options: &ServerOptions) -> bool {
    options.notifications.contains(['K', 'E'])
}

/// State that all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keyspace: Arc<Keyspace>,
    options: RwLock<Arc<ServerOptions>>,
    pub(crate) acl: Acl,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) channels: Channels,
    pub(crate) tracking: Tracking,
    pub(crate) clients: Mutex<BTreeMap<u64, Arc<Client>>>,
    pub(crate) counters: Counters,
    pub(crate) activities: Activities,
    pub(crate) statistics: CommandStatistics,
    pub(crate) errors: ErrorStatistics,
    pub(crate) slow_log: SlowLog,
    pub(crate) spikes: Spikes,
    pub(crate) monitors: Monitors,
    pub(crate) pauses: Pauses,
    pub(crate) thresholds: Thresholds,
    pub(crate) backups: Arc<Backups>,
    #[cfg(feature = "scripts")]
    pub(crate) scripts: Scripts,
    pub(crate) started: Instant,
    /// Random name of this run of the server.
    pub(crate) run_id: String,
    next_client: AtomicU64,
    /// Whether the server is stopping.
    stopping: AtomicBool,
    pub(crate) stop: Notify,
}

impl Shared {
    pub(crate) fn new(
        mut keyspace: Keyspace,
        options: ServerOptions,
        activities: Activities,
        statistics: CommandStatistics,
        #[cfg(feature = "scripts")] scripts: Scripts,
        knows: Knows,
    ) -> Shared {
        let thresholds = Thresholds::default();
        thresholds.set(&options);
        *keyspace.notifies.get_mut() = wants_events(&options);
        Shared {
            keyspace: Arc::new(keyspace),
            acl: Acl::new(options.requirepass.as_deref(), knows),
            options: RwLock::new(Arc::new(options)),
            waiters: Arc::default(),
            channels: Channels::default(),
            tracking: Tracking::default(),
            clients: Mutex::default(),
            counters: Counters::default(),
            activities,
            statistics,
            errors: ErrorStatistics::default(),
            slow_log: SlowLog::default(),
            spikes: Spikes::default(),
            monitors: Monitors::default(),
            pauses: Pauses::default(),
            thresholds,
            backups: Arc::default(),
            #[cfg(feature = "scripts")]
            scripts,
            started: Instant::now(),
            run_id: format!("{:032x}{:08x}", fastrand::u128(..), fastrand::u32(..)),
            next_client: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            stop: Notify::new(),
        }
    }

    /// Returns the options as they are now.
    pub(crate) fn options(&self) -> Arc<ServerOptions> {
        self.options
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_options(&self, options: ServerOptions) {
        let notifies = wants_events(&options);
        self.keyspace.notifies.store(notifies, Ordering::Relaxed);
        self.thresholds.set(&options);
        *self.options.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(options);
    }

    pub(crate) fn new_client(&self) -> u64 {
        // Relaxed: the numbers only have to differ.
        self.next_client.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn clients(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of a client.
    pub(crate) fn peer(&self, client: u64) -> String {
        let clients = self.clients();
        clients
            .get(&client)
            .map(|client| client.peer.clone())
            .unwrap_or_default()
    }

    /// Asks the server to stop.
    pub(crate) fn begin_stop(&self) {
        // Release pairs with the acquire in `is_stopping`.
        self.stopping.store(true, Ordering::Release);
        // A permit stays for a listener that is not waiting right now.
        self.stop.notify_one();
        for client in self.clients().values() {
            client.kill.notify();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Returns where messages to a connection are left; `None` if the connection is gone.
    pub(crate) fn mailbox(&self, client: u64) -> Option<Mailbox> {
        let clients = self.clients();
        clients.get(&client).map(|client| client.mailbox.clone())
    }

    /// Tells other connections what a committed transaction did, which a client wrote, or the server
    /// itself.
    pub(crate) fn publish(&self, effects: Effects, writer: Option<u64>) {
        if effects.is_write && Tracking::is_wanted(&self.keyspace.tracks) {
            let mut changes = effects.changes;
            // The transaction began when nobody was told of changes.
            changes.everything |= !effects.is_tracked;
            self.tracking.changed(changes, writer);
        }
        self.waiters.wake(&effects.arrivals);
        for message in &effects.messages {
            let topic = if message.is_shard {
                Topic::Shard
            } else {
                Topic::Channel
            };
            self.channels
                .publish(topic, &message.channel, &message.text);
        }
        if effects.expired > 0 {
            let expired = &self.counters.expired;
            expired.fetch_add(effects.expired, Ordering::Relaxed);
        }
        if effects.events.is_empty() {
            return;
        }
        let options = self.options();
        for event in effects.events {
            self.notify(&event, &options.notifications);
        }
    }

    /// Publishes a keyspace notification if its class is wanted.
    fn notify(&self, event: &Event, classes: &str) {
        let wanted = |class: char| classes.contains(class);
        let all = wanted('A') && "g$lshzxet".contains(event.class);
        if !(wanted(event.class) || all) {
            return;
        }
        let name = Bytes::from_static(event.name.as_bytes());
        if wanted('K') {
            let mut channel = format!("__keyspace@{}__:", event.database).into_bytes();
            channel.extend_from_slice(&event.key);
            self.channels
                .publish(Topic::Channel, &channel.into(), &name);
        }
        if wanted('E') {
            let channel = format!("__keyevent@{}__:{}", event.database, event.name);
            self.channels
                .publish(Topic::Channel, &channel.into(), &event.key);
        }
    }
}
