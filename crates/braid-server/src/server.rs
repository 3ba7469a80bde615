//! Starts and stops the threads of a server.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid::Database;
use tokio::sync::mpsc;

use crate::channels::mailbox;
use crate::connection::{self, Connection};
use crate::flushes;
use crate::keyspace::{Keyspace, Sweeper};
use crate::listeners::{self, Acceptor, Stream};
use crate::observe::{Activities, CommandStatistics};
use crate::options::ServerOptions;
use crate::session::Session;
use crate::shared::{Client, Shared, Signal};
#[cfg(feature = "tls")]
use crate::tls::TlsAcceptor;

/// Time between two looks for expired keys and garbage.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Connections that a thread serves before it looks which others can be served.
const EVENTS: u32 = 512;

/// Most connections of a thread for which other threads read from the medium at the same time. More
/// did not read more, and kept the log's writes waiting (`docs/server.md`).
const LOADING_MAX: usize = 4;

/// Longest time that a stopping server waits for its connections.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server cannot listen on an address; another program may be using it.
    #[error(
        "cannot listen on {address}: {source}; stop the program that listens there, or choose another address"
    )]
    Listen {
        /// Address or path.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread of the server: {0}")]
    Thread(io::Error),
    /// TLS is not configured as it has to be.
    #[error("{0}")]
    Tls(String),
    /// The file of users is wrong.
    #[error("{0}")]
    Users(String),
    /// A library of functions in the database cannot be loaded.
    #[error("cannot load the functions of the database: {0}")]
    Functions(String),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] braid::Error),
}

/// A running server.
///
/// ```
/// use std::io::{Read, Write};
/// use braid_server::{Server, ServerOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = ServerOptions { bind: vec!["127.0.0.1:0".parse()?], ..ServerOptions::default() };
/// let server = Server::start(braid::Database::in_memory()?, options)?;
/// let mut client = std::net::TcpStream::connect(server.addresses()[0])?;
/// client.write_all(b"SET book Emma\r\n")?;
/// let mut reply = [0; 5];
/// client.read_exact(&mut reply)?;
/// assert_eq!(&reply, b"+OK\r\n"); // durable from here on
/// server.stop();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    tls_addresses: Vec<SocketAddr>,
    http_address: Option<SocketAddr>,
    workers: Vec<JoinHandle<()>>,
    sweeper: Option<JoinHandle<()>>,
    tracker: Option<JoinHandle<()>>,
    sweeper_stop: Arc<(Mutex<bool>, Condvar)>,
    unixsocket: Option<PathBuf>,
}

impl Server {
    /// Starts a server on a database, which belongs to it from then on: other programs' tables may
    /// be in it, but not tables with the server's names.
    ///
    /// # Errors
    /// [`ServerError::Listen`] for an address in use, [`ServerError::Users`] for a wrong file of users;
    /// errors of the database.
    pub fn start(db: Database, options: ServerOptions) -> Result<Server, ServerError> {
        let keyspace = Keyspace::open(db)?;
        let listeners = listen_on(&options.bind)?;
        #[cfg(feature = "tls")]
        let tls = (!options.tls_bind.is_empty())
            .then(|| TlsAcceptor::new(&options).map_err(ServerError::Tls))
            .transpose()?;
        #[cfg(not(feature = "tls"))]
        if !options.tls_bind.is_empty() {
            let reason = "this program was built without TLS: build it with `--features tls`";
            return Err(ServerError::Tls(reason.to_owned()));
        }
        let tls_listeners = listen_on(&options.tls_bind)?;
        let http = options.http.map(listen).transpose()?;
        let (addresses, tls_addresses) = (addresses(&listeners), addresses(&tls_listeners));
        let http_address = http
            .as_ref()
            .and_then(|listener| listener.local_addr().ok());
        #[cfg(unix)]
        let unix = listen_unix(&options)?;
        let unixsocket = options.unixsocket.clone();
        let threads = options
            .threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
            .max(1);
        let shared = Arc::new(share(keyspace, options, threads)?);
        let mut workers = Vec::new();
        let mut senders = Vec::new();
        for number in 0..threads {
            let (sender, receiver) = mpsc::unbounded_channel();
            senders.push(sender);
            let shared = Arc::clone(&shared);
            workers.push(spawn(format!("serve-{number}"), move || {
                work(&shared, number as u16, receiver)
            })?);
        }
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            listeners,
            #[cfg(feature = "tls")]
            tls: tls.map(|acceptor| (acceptor, tls_listeners)),
            http,
            #[cfg(unix)]
            unix,
            senders,
        };
        workers.push(spawn("accept".to_owned(), move || acceptor.run())?);
        let sweeper_stop = Arc::new((Mutex::new(false), Condvar::new()));
        let sweeper = spawn("sweep".to_owned(), {
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&sweeper_stop));
            move || sweep(&shared, &stop)
        })?;
        let tracker = spawn("track".to_owned(), {
            let shared = Arc::clone(&shared);
            move || {
                let db = &shared.keyspace.db;
                // An error means that the log has failed, or that the database is closed.
                let wait = |seqno| drop(db.wait_durable(seqno));
                shared.tracking.run(wait, |client| shared.mailbox(client));
            }
        })?;
        Ok(Server {
            shared,
            addresses,
            tls_addresses,
            http_address,
            workers,
            sweeper: Some(sweeper),
            tracker: Some(tracker),
            sweeper_stop,
            unixsocket,
        })
    }

    /// Returns the addresses on which the server listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the addresses on which the server listens for connections with TLS.
    pub fn tls_addresses(&self) -> &[SocketAddr] {
        &self.tls_addresses
    }

    /// Returns the address of the pages for people and monitoring.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Stops the server: accepts no connection, answers what is in progress, and ends the
    /// connections. The database remains open; the program that opened it closes it.
    pub fn stop(mut self) {
        self.shared.begin_stop();
        self.join();
    }

    /// Waits until a client sends SHUTDOWN, or `should_stop`, which is asked ten times a second,
    /// returns `true`; then stops the server.
    pub fn run(mut self, mut should_stop: impl FnMut() -> bool) {
        while !self.shared.is_stopping() {
            if should_stop() {
                self.shared.begin_stop();
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
        self.join();
    }

    fn join(&mut self) {
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
        let (stop, changed) = &*self.sweeper_stop;
        *stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
        if let Some(sweeper) = self.sweeper.take() {
            let _ = sweeper.join();
        }
        if let Some(tracker) = self.tracker.take() {
            self.shared.tracking.stop();
            let _ = tracker.join();
        }
        self.shared.backups.join();
        if let Some(path) = self.unixsocket.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.begin_stop();
        self.join();
    }
}

fn spawn(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ServerError> {
    std::thread::Builder::new()
        .name(name)
        .spawn(body)
        .map_err(ServerError::Thread)
}

/// Makes the state that all connections share, with the users and functions that are stored.
pub(crate) fn share(
    keyspace: Keyspace,
    options: ServerOptions,
    threads: usize,
) -> Result<Shared, ServerError> {
    let aclfile = options.aclfile.clone();
    let activities = Activities::new(threads);
    let statistics = CommandStatistics::new(threads, crate::command::commands().len());
    #[cfg(feature = "scripts")]
    let scripts = crate::script::Scripts::open(&keyspace.db)?;
    let shared = Shared::new(
        keyspace,
        options,
        activities,
        statistics,
        #[cfg(feature = "scripts")]
        scripts,
        |name| crate::command::find(name.as_bytes()).is_some(),
    );
    #[cfg(feature = "scripts")]
    crate::command::load_functions(&shared)
        .map_err(|failure| ServerError::Functions(failure.describe()))?;
    if let Some(path) = &aclfile
        && path.exists()
    {
        shared.acl.load(path).map_err(ServerError::Users)?;
    }
    Ok(shared)
}

fn listen_on(addresses: &[SocketAddr]) -> Result<Vec<std::net::TcpListener>, ServerError> {
    addresses.iter().copied().map(listen).collect()
}

fn addresses(listeners: &[std::net::TcpListener]) -> Vec<SocketAddr> {
    let addresses = listeners.iter().map(std::net::TcpListener::local_addr);
    addresses.filter_map(Result::ok).collect()
}

fn listen(address: SocketAddr) -> Result<std::net::TcpListener, ServerError> {
    listeners::listen(address).map_err(|source| ServerError::Listen {
        address: address.to_string(),
        source,
    })
}

#[cfg(unix)]
fn listen_unix(
    options: &ServerOptions,
) -> Result<Option<std::os::unix::net::UnixListener>, ServerError> {
    let Some(path) = &options.unixsocket else {
        return Ok(None);
    };
    let listener = listeners::listen_unix(path, options.unixsocketperm);
    listener.map(Some).map_err(|source| ServerError::Listen {
        address: path.display().to_string(),
        source,
    })
}

fn runtime() -> Option<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(connection::gather)
        .event_interval(EVENTS)
        .max_blocking_threads(LOADING_MAX)
        .thread_name("serve-load")
        .build()
        .ok()
}

/// Serves the connections of one thread until the server stops.
fn work(shared: &Arc<Shared>, stripe: u16, mut streams: mpsc::UnboundedReceiver<Stream>) {
    let Some(runtime) = runtime() else {
        return;
    };
    runtime.block_on(async {
        poll_fn(|context| {
            flushes::begin(&shared.keyspace.db, context.waker());
            Poll::Ready(())
        })
        .await;
        // Each flush that ends while the thread does not sleep for it wakes this task.
        let mut answers = pin!(poll_fn(|_| {
            flushes::answer();
            Poll::<()>::Pending
        }));
        let mut connections = tokio::task::JoinSet::new();
        // The acceptor drops its end when the server stops.
        loop {
            tokio::select! {
                stream = streams.recv() => match stream {
                    Some(stream) => {
                        if let Some(connection) = connect(shared, stripe, &stream) {
                            connections.spawn(run(connection, stream));
                        }
                    }
                    None => break,
                },
                Some(_) = connections.join_next() => {}
                () = &mut answers => {}
            }
        }
        // Connections that were made while the server began to stop have not been told.
        for client in shared.clients().values() {
            client.kill.notify();
        }
        let finish = async { while connections.join_next().await.is_some() {} };
        tokio::select! {
            _ = tokio::time::timeout(STOP_TIMEOUT, finish) => {}
            () = answers => {}
        }
    });
    connection::end();
    flushes::end();
}

/// Sends small replies at once, and lets the system notice clients that have vanished without a
/// word. A socket that refuses that works all the same.
fn prepare(stream: &std::net::TcpStream, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let silence = shared.options().tcp_keepalive;
    if !silence.is_zero() {
        // As in Redis: the questions after the first are a third of the time apart.
        let between = (silence / 3).max(Duration::from_secs(1));
        let probes = socket2::TcpKeepalive::new()
            .with_time(silence)
            .with_interval(between);
        let _ = socket2::SockRef::from(stream).set_tcp_keepalive(&probes);
    }
}

async fn run(connection: Box<Connection>, stream: Stream) {
    match stream {
        Stream::Tcp(stream, _) => {
            prepare(&stream, &connection.shared);
            if let Ok(stream) = tokio::net::TcpStream::from_std(stream) {
                connection.run(stream).await;
            }
        }
        #[cfg(feature = "tls")]
        Stream::Tls(stream, _, acceptor) => {
            prepare(&stream, &connection.shared);
            // In a box: otherwise every connection has room for a handshake and a session of TLS.
            Box::pin(async move {
                if let Ok(stream) = tokio::net::TcpStream::from_std(stream)
                    && let Some(stream) = acceptor.accept(stream).await
                {
                    connection.run(stream).await;
                }
            })
            .await;
        }
        #[cfg(unix)]
        Stream::Unix(stream) => {
            if let Ok(stream) = tokio::net::UnixStream::from_std(stream) {
                connection.run(stream).await;
            }
        }
    }
}

/// Makes the state of a new connection.
fn connect(shared: &Arc<Shared>, stripe: u16, stream: &Stream) -> Option<Box<Connection>> {
    let options = shared.options();
    let (peer, local) = match stream {
        Stream::Tcp(stream, peer) => (peer.to_string(), stream.local_addr().ok()?.to_string()),
        #[cfg(feature = "tls")]
        Stream::Tls(stream, peer, _) => (peer.to_string(), stream.local_addr().ok()?.to_string()),
        #[cfg(unix)]
        Stream::Unix(_) => {
            let path = options.unixsocket.as_ref()?.display().to_string();
            (format!("{path}:0"), format!("{path}:0"))
        }
    };
    shared.counters.connections.fetch_add(1, Ordering::Relaxed);
    let id = shared.new_client();
    let (mailbox, inbox) = mailbox(options.client_output_buffer_limit);
    let session = Session::new(id, &shared.acl, mailbox, stripe);
    let client = Arc::new(Client {
        mailbox: session.mailbox.clone(),
        user: Mutex::new(Arc::clone(&session.user)),
        peer,
        local,
        since: Instant::now(),
        info: Mutex::default(),
        kill: Signal::default(),
        unblock: tokio::sync::Notify::new(),
        unblock_fails: false.into(),
    });
    shared.clients().insert(id, Arc::clone(&client));
    Some(Connection::new(Arc::clone(shared), session, inbox, client))
}

/// Removes expired keys and garbage until the server stops.
fn sweep(shared: &Shared, stop: &(Mutex<bool>, Condvar)) {
    let sweeper = Sweeper::new(Arc::clone(&shared.keyspace));
    loop {
        // Nothing changes while clients are paused.
        let is_paused = shared.pauses.current().is_some();
        let began = Instant::now();
        shared.activities.sample(began);
        // After an error the next interval tries again; INFO shows the database's health.
        let publish = |effects| shared.publish(effects, None);
        let has_more = match (!is_paused).then(|| sweeper.step(publish)) {
            Some(Ok(has_more)) => has_more,
            Some(Err(failure)) => {
                tracing::error!("expired keys and garbage remain: {failure:?}");
                false
            }
            None => false,
        };
        let threshold = shared.thresholds.spike();
        shared
            .spikes
            .add("expire-cycle", began.elapsed(), threshold);
        let stopped = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *stopped {
            return;
        }
        if has_more {
            continue;
        }
        let (stopped, _) = stop
            .1
            .wait_timeout(stopped, SWEEP_INTERVAL)
            .unwrap_or_else(PoisonError::into_inner);
        if *stopped {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of what a function of two arguments returns.
    fn size_of_result<A, B, R>(_: impl FnOnce(A, B) -> R) -> usize {
        size_of::<R>()
    }

    #[test]
    fn a_connection_has_no_room_for_what_few_connections_do() {
        let sizes = [
            ("its task", size_of_result(run), 1024),
            ("its state", size_of::<Connection>(), 1024),
            ("what others see of it", size_of::<Client>(), 512),
            ("its messages", crate::channels::EMPTY_MAILBOX, 128),
        ];
        println!("{sizes:?}");
        for (what, size, most) in sizes {
            assert!(size <= most, "{what}: {size} bytes instead of {most}");
        }
    }
}
