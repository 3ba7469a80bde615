//! The file that configures a server.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer};

use crate::options::{ServerOptions, TlsClients};

/// Why a file of configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The file is not TOML, names an unknown parameter, or gives one a wrong value.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: Box<toml::de::Error>,
    },
}

/// A number of bytes: an integer, or a text with a unit as in `redis.conf` (`"64mb"`; `k` is 1000,
/// `kb` 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bytes(u64);

impl Bytes {
    fn parse(text: &str) -> Option<Bytes> {
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = lower.split_at(digits);
        let factor: u64 = match unit {
            "" | "b" => 1,
            "k" => 1000,
            "kb" => 1 << 10,
            "m" => 1_000_000,
            "mb" => 1 << 20,
            "g" => 1_000_000_000,
            "gb" => 1 << 30,
            _ => return None,
        };
        Some(Bytes(number.parse::<u64>().ok()?.checked_mul(factor)?))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, such as 1048576 or \"1mb\"")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Bytes, E> {
                let number = u64::try_from(number);
                number
                    .map(Bytes)
                    .map_err(|_| E::custom("a number of bytes is not negative"))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                Bytes::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Permissions of a file as `chmod` takes them: a text of octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Permissions(u32);

impl<'de> Deserialize<'de> for Permissions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A number would be decimal in TOML and octal in redis.conf.
        let text = String::deserialize(deserializer)?;
        let mode = u32::from_str_radix(&text, 8)
            .ok()
            .filter(|mode| *mode <= 0o777);
        mode.map(Permissions).ok_or_else(|| {
            let given = de::Unexpected::Str(&text);
            de::Error::invalid_value(given, &"permissions such as \"770\"")
        })
    }
}

/// One address, or a list of them.
#[derive(Debug, serde::Deserialize)]
#[serde(
    untagged,
    expecting = "an address such as \"127.0.0.1\", or a list of addresses"
)]
enum Addresses {
    One(IpAddr),
    Several(Vec<IpAddr>),
}

/// Words of `tls-auth-clients`.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Clients {
    Yes,
    No,
    Optional,
}

/// What a file says; every parameter may be missing.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    bind: Option<Addresses>,
    port: Option<u16>,
    tls_port: Option<u16>,
    tls_cert_file: Option<PathBuf>,
    tls_key_file: Option<PathBuf>,
    tls_ca_cert_file: Option<PathBuf>,
    tls_auth_clients: Option<Clients>,
    unixsocket: Option<PathBuf>,
    unixsocketperm: Option<Permissions>,
    requirepass: Option<String>,
    aclfile: Option<PathBuf>,
    io_threads: Option<u16>,
    maxclients: Option<u32>,
    timeout: Option<u32>,
    tcp_keepalive: Option<u32>,
    proto_max_bulk_len: Option<Bytes>,
    client_query_buffer_limit: Option<Bytes>,
    client_output_buffer_limit: Option<Bytes>,
    notify_keyspace_events: Option<String>,
    lua_time_limit: Option<u32>,
    script_memory_limit: Option<Bytes>,
    tracking_table_max_keys: Option<u32>,
    backup_directory: Option<PathBuf>,
    backup_full_every: Option<u16>,
    archive_directory: Option<PathBuf>,
    archive_interval: Option<u32>,
    log_format: Option<LogFormat>,
    loglevel: Option<LogLevel>,
    slowlog_log_slower_than: Option<i64>,
    slowlog_max_len: Option<u32>,
    latency_monitor_threshold: Option<u32>,
    http: Option<SocketAddr>,
    pool: Option<Bytes>,
    log_directory: Option<PathBuf>,
    log_device: Option<String>,
    nvme_idle_us: Option<u32>,
}

/// How the server writes its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// An object of JSON in each line.
    Json,
}

/// Least importance of the lines of a log, with the names of `redis.conf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum LogLevel {
    Debug,
    Verbose,
    Notice,
    Warning,
    Nothing,
}

/// A server's configuration: the options of the server, and what concerns its database.
///
/// ```
/// use braid_server::Config;
/// let text = "port = 7000\nmaxclients = 50\npool = \"64mb\"";
/// let config = Config::parse(text, "serve.toml".as_ref())?;
/// assert_eq!(config.options.bind, ["127.0.0.1:7000".parse().unwrap()]);
/// assert_eq!(config.pool_bytes, 64 << 20);
/// # Ok::<(), braid_server::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// Options of the server.
    pub options: ServerOptions,
    /// Memory for pages in bytes.
    pub pool_bytes: u64,
    /// Directory of the log, if it is not with the data.
    pub log_directory: Option<PathBuf>,
    /// Device of the log, with the names that [`braid::device::DeviceChoice`] parses.
    pub log_device: Option<String>,
    /// Microseconds for which a thread polls an NVMe drive before it sleeps, see
    /// [`braid::Builder::nvme_idle_us`]; `None` for the engine's default.
    pub nvme_idle_us: Option<u32>,
    /// Directory of the archive of the log, see [`braid::Builder::archive`].
    pub archive_directory: Option<PathBuf>,
    /// Time between two updates of the archive.
    pub archive_interval: Duration,
    /// How the server writes its log.
    pub log_format: LogFormat,
    /// Least importance of the lines of the log; `None` for no log.
    pub log_level: Option<tracing::Level>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            options: ServerOptions::default(),
            pool_bytes: 256 << 20,
            log_directory: None,
            log_device: None,
            nvme_idle_us: None,
            archive_directory: None,
            archive_interval: Duration::from_secs(1),
            log_format: LogFormat::Text,
            log_level: Some(tracing::Level::INFO),
        }
    }
}

impl Config {
    /// Reads a file in TOML. The parameters have the names of `redis.conf` where the meaning is the
    /// same; `docs/server.md` lists them. Those that the file does not name have their default.
    ///
    /// # Errors
    /// [`ConfigError::Read`] and [`ConfigError::Parse`].
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Config::parse(&text, path)
    }

    /// Parses the text of a file; `path` is for errors.
    ///
    /// # Errors
    /// [`ConfigError::Parse`].
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let wrong = |source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let file: File = toml::from_str(text).map_err(wrong)?;
        let mut config = Config::default();
        if let Some(text) = &file.notify_keyspace_events {
            config.options.notifications = notification_classes(text)
                .ok_or_else(|| wrong(de::Error::custom(NOTIFICATION_CLASSES)))?;
        }
        file.set_limits(&mut config.options);
        file.set_records(&mut config);
        file.set_places(&mut config);
        Ok(config)
    }
}

/// Returns a number of bytes; what an address space cannot hold is no limit.
fn bytes(bytes: Option<Bytes>) -> Option<usize> {
    bytes.map(|Bytes(n)| usize::try_from(n).unwrap_or(usize::MAX))
}

fn millis(millis: Option<u32>) -> Option<Duration> {
    millis.map(|millis| Duration::from_millis(millis.into()))
}

fn seconds(seconds: Option<u32>) -> Option<Duration> {
    seconds.map(|seconds| Duration::from_secs(seconds.into()))
}

impl File {
    /// Sets limits of memory and time.
    fn set_limits(&self, options: &mut ServerOptions) {
        const LEAST: usize = 1 << 20;
        set(
            &mut options.maxclients,
            self.maxclients.map(|count| count as usize),
        );
        set(
            &mut options.tracking_table_max_keys,
            self.tracking_table_max_keys.map(|count| count as usize),
        );
        set(&mut options.timeout, seconds(self.timeout));
        set(&mut options.tcp_keepalive, seconds(self.tcp_keepalive));
        let bulk = bytes(self.proto_max_bulk_len);
        set(
            &mut options.proto_max_bulk_len,
            bulk.map(|len| len.clamp(LEAST, braid::MAX_VALUE_LEN)),
        );
        for (limit, given) in [
            (
                &mut options.client_query_buffer_limit,
                self.client_query_buffer_limit,
            ),
            (
                &mut options.client_output_buffer_limit,
                self.client_output_buffer_limit,
            ),
            (&mut options.script_memory_limit, self.script_memory_limit),
        ] {
            set(limit, bytes(given).map(|limit| limit.max(LEAST)));
        }
        set(&mut options.lua_time_limit, millis(self.lua_time_limit));
    }

    /// Sets what the server notes and logs.
    fn set_records(&self, config: &mut Config) {
        let options = &mut config.options;
        set(
            &mut options.slowlog_log_slower_than,
            self.slowlog_log_slower_than.map(slow_after),
        );
        set(
            &mut options.slowlog_max_len,
            self.slowlog_max_len.map(|len| len as usize),
        );
        set(
            &mut options.latency_monitor_threshold,
            millis(self.latency_monitor_threshold),
        );
        set(&mut config.log_format, self.log_format);
        set(
            &mut config.log_level,
            self.loglevel.map(|level| match level {
                LogLevel::Debug => Some(tracing::Level::TRACE),
                LogLevel::Verbose => Some(tracing::Level::DEBUG),
                LogLevel::Notice => Some(tracing::Level::INFO),
                LogLevel::Warning => Some(tracing::Level::WARN),
                LogLevel::Nothing => None,
            }),
        );
    }

    /// Sets addresses, files and directories, and what concerns the database.
    fn set_places(self, config: &mut Config) {
        let options = &mut config.options;
        let port = self.port.unwrap_or(options.bind[0].port());
        let addresses = match self.bind {
            None => vec![options.bind[0].ip()],
            Some(Addresses::One(address)) => vec![address],
            Some(Addresses::Several(addresses)) => addresses,
        };
        let on = |port| {
            let on_port = |address: &IpAddr| SocketAddr::new(*address, port);
            addresses.iter().map(on_port).collect::<Vec<_>>()
        };
        options.tls_bind = self
            .tls_port
            .filter(|port| *port > 0)
            .map(on)
            .unwrap_or_default();
        // As in redis.conf: no connections without TLS.
        let is_tls_only = self.port == Some(0) && !options.tls_bind.is_empty();
        options.bind = if is_tls_only { Vec::new() } else { on(port) };
        options.tls_cert_file = self.tls_cert_file;
        options.tls_key_file = self.tls_key_file;
        options.tls_ca_cert_file = self.tls_ca_cert_file;
        options.tls_auth_clients = match self.tls_auth_clients {
            None | Some(Clients::Yes) => TlsClients::Yes,
            Some(Clients::No) => TlsClients::No,
            Some(Clients::Optional) => TlsClients::Optional,
        };
        options.unixsocket = self.unixsocket;
        options.unixsocketperm = self.unixsocketperm.map(|Permissions(mode)| mode);
        options.requirepass = self.requirepass;
        options.aclfile = self.aclfile;
        options.threads = self.io_threads.map(usize::from);
        options.http = self.http;
        options.backup_directory = self.backup_directory;
        set(
            &mut options.backup_full_every,
            self.backup_full_every
                .map(|count| usize::from(count).max(1)),
        );
        set(&mut config.pool_bytes, self.pool.map(|Bytes(n)| n));
        config.log_directory = self.log_directory;
        config.log_device = self.log_device;
        config.nvme_idle_us = self.nvme_idle_us;
        config.archive_directory = self.archive_directory;
        let interval = self.archive_interval.map(|seconds| seconds.max(1));
        set(&mut config.archive_interval, seconds(interval));
    }
}

/// Returns the duration that `slowlog-log-slower-than` means: microseconds, none if negative.
pub(crate) fn slow_after(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// What is wrong with classes that `notification_classes` refuses.
pub(crate) const NOTIFICATION_CLASSES: &str =
    "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.";

/// Parses the classes of `notify-keyspace-events`, and returns them in a fixed order.
pub(crate) fn notification_classes(text: &str) -> Option<String> {
    const KNOWN: &str = "KEAg$lshzxetdmn";
    if !text.chars().all(|class| KNOWN.contains(class)) {
        return None;
    }
    Some(
        KNOWN
            .chars()
            .filter(|class| text.contains(*class))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("serve.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_parameter_is_read() {
        let config = parse(
            r#"
            bind = ["0.0.0.0", "::1"]
            port = 7000
            unixsocket = "/run/braid.sock"
            unixsocketperm = "770"
            requirepass = "secret"
            aclfile = "/etc/braid/users.acl"
            io-threads = 3
            maxclients = 7
            timeout = 9
            tcp-keepalive = 60
            proto-max-bulk-len = "2mb"
            client-query-buffer-limit = 3000000
            client-output-buffer-limit = "4m"
            notify-keyspace-events = "EKx"
            slowlog-log-slower-than = -1
            slowlog-max-len = 5
            backup-directory = "/backups"
            backup-full-every = 3
            archive-directory = "/archive"
            archive-interval = 10
            log-format = "json"
            loglevel = "warning"
            lua-time-limit = 70
            script-memory-limit = "8mb"
            tracking-table-max-keys = 12
            latency-monitor-threshold = 20
            http = "127.0.0.1:8080"
            pool = "1gb"
            log-directory = "/log"
            log-device = "uring"
            nvme-idle-us = 40
            "#,
        )
        .unwrap();
        let options = config.options;
        assert_eq!(
            options.bind,
            [
                "0.0.0.0:7000".parse().unwrap(),
                "[::1]:7000".parse().unwrap()
            ]
        );
        assert_eq!(options.unixsocket.unwrap().as_os_str(), "/run/braid.sock");
        assert_eq!(options.unixsocketperm, Some(0o770));
        assert_eq!(options.requirepass.unwrap(), "secret");
        assert_eq!(options.aclfile.unwrap().as_os_str(), "/etc/braid/users.acl");
        assert_eq!(options.threads, Some(3));
        assert_eq!(options.maxclients, 7);
        assert_eq!(options.timeout, Duration::from_secs(9));
        assert_eq!(options.tcp_keepalive, Duration::from_secs(60));
        assert_eq!(options.proto_max_bulk_len, 2 << 20);
        assert_eq!(options.client_query_buffer_limit, 3_000_000);
        assert_eq!(options.client_output_buffer_limit, 4_000_000);
        assert_eq!(options.notifications, "KEx");
        assert_eq!(options.slowlog_log_slower_than, None);
        assert_eq!(options.slowlog_max_len, 5);
        assert_eq!(options.backup_directory.unwrap().as_os_str(), "/backups");
        assert_eq!(options.backup_full_every, 3);
        assert_eq!(config.archive_directory.unwrap().as_os_str(), "/archive");
        assert_eq!(config.archive_interval, Duration::from_secs(10));
        assert_eq!(config.log_format, LogFormat::Json);
        assert_eq!(config.log_level, Some(tracing::Level::WARN));
        assert_eq!(options.lua_time_limit, Duration::from_millis(70));
        assert_eq!(options.script_memory_limit, 8 << 20);
        assert_eq!(options.tracking_table_max_keys, 12);
        assert_eq!(options.latency_monitor_threshold, Duration::from_millis(20));
        assert_eq!(options.http, Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(config.pool_bytes, 1 << 30);
        assert_eq!(config.log_directory.unwrap().as_os_str(), "/log");
        assert_eq!(config.log_device.as_deref(), Some("uring"));
        assert_eq!(config.nvme_idle_us, Some(40));
    }

    #[test]
    fn parameters_of_tls_are_read() {
        let text = r#"
            bind = ["0.0.0.0", "::1"]
            tls-port = 7001
            tls-cert-file = "/etc/server.crt"
            tls-key-file = "/etc/server.key"
            tls-ca-cert-file = "/etc/ca.crt"
            tls-auth-clients = "optional"
            "#;
        let options = parse(text).unwrap().options;
        let tls = [
            "0.0.0.0:7001".parse().unwrap(),
            "[::1]:7001".parse().unwrap(),
        ];
        assert_eq!(options.tls_bind, tls);
        assert_eq!(
            options.tls_cert_file.unwrap().as_os_str(),
            "/etc/server.crt"
        );
        assert_eq!(options.tls_key_file.unwrap().as_os_str(), "/etc/server.key");
        assert_eq!(options.tls_ca_cert_file.unwrap().as_os_str(), "/etc/ca.crt");
        assert_eq!(options.tls_auth_clients, TlsClients::Optional);
    }

    #[test]
    fn port_zero_with_tls_means_tls_only() {
        let options = parse("port = 0\ntls-port = 7").unwrap().options;
        assert_eq!((options.bind.len(), options.tls_bind.len()), (0, 1));
        let options = parse("port = 0").unwrap().options;
        assert_eq!((options.bind.len(), options.tls_bind.len()), (1, 0));
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        let (empty, default) = (parse("").unwrap(), Config::default());
        assert_eq!(format!("{empty:?}"), format!("{default:?}"));
    }

    #[test]
    fn wrong_files_say_where_and_why() {
        for (text, expected) in [
            ("prot = 1", "unknown field `prot`"),
            ("port = 70000", "line 1"),
            ("port = \"a\"", "invalid type"),
            ("bind = \"nowhere\"", "an address such as"),
            ("pool = \"3 apples\"", "such as 1048576 or \"1mb\""),
            ("pool = -1", "not negative"),
            ("unixsocketperm = \"789\"", "permissions such as \"770\""),
            ("unixsocketperm = \"1777\"", "permissions such as \"770\""),
            ("unixsocketperm = 770", "invalid type"),
            ("pool = \"99999999999gb\"", "such as 1048576"),
            ("notify-keyspace-events = \"?\"", "Invalid event class"),
            ("port = 1\nport = 2", "duplicate key"),
            ("port", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("serve.toml: "), "{error}");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
