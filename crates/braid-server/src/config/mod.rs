//! The file that configures a server.

mod file;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::Error;

use crate::options::ServerOptions;
use file::File;

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
                .ok_or_else(|| wrong(Error::custom(NOTIFICATION_CLASSES)))?;
        }
        file.set_limits(&mut config.options);
        file.set_records(&mut config);
        file.set_places(&mut config);
        Ok(config)
    }
}

/// Returns the duration that `slowlog-log-slower-than` means: microseconds, none if negative.
pub(crate) fn slow_after(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
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
    use crate::options::TlsClients;

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
