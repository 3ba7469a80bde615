//! The parameters of a file, as TOML has them, and the options that they set.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer};

use super::{Config, LogFormat, slow_after};
use crate::options::{ServerOptions, TlsClients};

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
pub(super) struct File {
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
    pub(super) notify_keyspace_events: Option<String>,
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
    pub(super) fn set_limits(&self, options: &mut ServerOptions) {
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
    pub(super) fn set_records(&self, config: &mut Config) {
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
    pub(super) fn set_places(self, config: &mut Config) {
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

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}
