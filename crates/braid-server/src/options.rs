//! Options of the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Whether clients with TLS need a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsClients {
    /// Each needs one of a known authority.
    #[default]
    Yes,
    /// None needs one, and one that is sent is not looked at.
    No,
    /// None needs one, and one that is sent has to be of a known authority.
    Optional,
}

/// Options of a [`Server`](crate::Server), with the names and defaults of `redis.conf` where the
/// meaning is the same.
///
/// ```
/// use braid_server::ServerOptions;
/// let options = ServerOptions { requirepass: Some("secret".to_owned()), ..ServerOptions::default() };
/// assert_eq!(options.maxclients, 10_000);
/// ```
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Addresses on which the server listens; port 0 lets the system choose a port.
    pub bind: Vec<SocketAddr>,
    /// Addresses on which the server listens for connections with TLS, which needs the feature `tls`.
    pub tls_bind: Vec<SocketAddr>,
    /// Certificate of the server, with those that lead to its authority, in PEM.
    pub tls_cert_file: Option<PathBuf>,
    /// Key of the certificate in PEM.
    pub tls_key_file: Option<PathBuf>,
    /// Certificates of the authorities of clients in PEM.
    pub tls_ca_cert_file: Option<PathBuf>,
    /// Whether clients need a certificate.
    pub tls_auth_clients: TlsClients,
    /// Path of a Unix socket on which the server also listens.
    pub unixsocket: Option<PathBuf>,
    /// Permissions of the file of the Unix socket, such as `0o770`; `None` for those that the process
    /// gives new files.
    pub unixsocketperm: Option<u32>,
    /// Threads that serve connections; `None` for one per processor.
    pub threads: Option<usize>,
    /// Password of the user `default`; a file of users overrides it.
    pub requirepass: Option<String>,
    /// File of users, as ACL LOAD reads it and ACL SAVE writes it. The server reads it at its start if
    /// it exists.
    pub aclfile: Option<PathBuf>,
    /// Address of the pages for people and monitoring: `/`, `/health` and `/metrics`.
    pub http: Option<SocketAddr>,
    /// Most connections; further ones get an error.
    pub maxclients: usize,
    /// Longest silence of a client before its connection ends; zero for no limit.
    pub timeout: Duration,
    /// Silence of a client after which the system asks whether it is still there; zero for never.
    pub tcp_keepalive: Duration,
    /// Longest argument in bytes.
    pub proto_max_bulk_len: usize,
    /// Most bytes of requests that a connection may have sent and the server has not executed.
    pub client_query_buffer_limit: usize,
    /// Most bytes of replies or messages that a client has not read.
    pub client_output_buffer_limit: usize,
    /// Time from which on SLOWLOG keeps a command; `None` for none.
    pub slowlog_log_slower_than: Option<Duration>,
    /// Commands that SLOWLOG keeps.
    pub slowlog_max_len: usize,
    /// Time from which on LATENCY keeps an event; zero for none.
    pub latency_monitor_threshold: Duration,
    /// Longest time that a script may run; what a longer one did is undone.
    pub lua_time_limit: Duration,
    /// Memory that the scripts of one thread may use, in bytes.
    pub script_memory_limit: usize,
    /// Directory in which SAVE and BGSAVE make backups; without it they take a checkpoint.
    pub backup_directory: Option<PathBuf>,
    /// One backup in so many is full; the others contain what has changed since the one before.
    pub backup_full_every: usize,
    /// Most keys that the server remembers for clients that keep what they read, counted for each
    /// client; zero for no limit. Beyond it, keys count as changed.
    pub tracking_table_max_keys: usize,
    /// Classes of keyspace notifications, as in `notify-keyspace-events`.
    pub notifications: String,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            bind: vec![SocketAddr::from(([127, 0, 0, 1], 6379))],
            tls_bind: Vec::new(),
            tls_cert_file: None,
            tls_key_file: None,
            tls_ca_cert_file: None,
            tls_auth_clients: TlsClients::Yes,
            unixsocket: None,
            unixsocketperm: None,
            threads: None,
            requirepass: None,
            aclfile: None,
            http: None,
            maxclients: 10_000,
            timeout: Duration::ZERO,
            tcp_keepalive: Duration::from_secs(300),
            proto_max_bulk_len: braid::MAX_VALUE_LEN,
            client_query_buffer_limit: 1 << 30,
            client_output_buffer_limit: 256 << 20,
            slowlog_log_slower_than: Some(Duration::from_millis(10)),
            slowlog_max_len: 128,
            latency_monitor_threshold: Duration::ZERO,
            lua_time_limit: Duration::from_secs(5),
            script_memory_limit: 64 << 20,
            backup_directory: None,
            backup_full_every: 7,
            tracking_table_max_keys: 1_000_000,
            notifications: String::new(),
        }
    }
}
