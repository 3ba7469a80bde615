//! `braid serve`: serves a database to Redis clients.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use braid::{Database, Health};
use braid_server::{Config, LogFormat, Server, ServerError};

use super::log_place::LogPlaceArgs;
use crate::failure::Failure;
use crate::numbers::parse;
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Directory of the database; created if it does not exist
    dir: PathBuf,

    /// File of configuration in TOML; other arguments override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    log: LogPlaceArgs,

    /// Addresses to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", num_args = 1..)]
    bind: Vec<IpAddr>,

    /// Port to listen on; 0 lets the system choose one [default: 6379]
    #[arg(long)]
    port: Option<u16>,

    /// Path of a Unix socket to listen on as well
    #[arg(long, value_name = "PATH")]
    unixsocket: Option<PathBuf>,

    /// Address of the pages for people and monitoring: /, /health and /metrics [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<SocketAddr>,

    /// Password that clients have to give [default: the environment variable BRAID_REQUIREPASS]
    ///
    /// Other users of the machine can read the arguments of a command, but not its environment.
    #[arg(long, value_name = "PASSWORD")]
    requirepass: Option<String>,

    /// File of users, which ACL SAVE writes
    #[arg(long, value_name = "FILE")]
    aclfile: Option<PathBuf>,

    /// Threads that serve connections [default: one per processor]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Most connections [default: 10000]
    #[arg(long, value_name = "COUNT")]
    maxclients: Option<usize>,

    /// Longest silence of a client before its connection ends; 0 for no limit [default: 0]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// Time for which a thread polls the NVMe drive of a volume before it sleeps; 0 to sleep at once
    /// [default: 20]
    #[arg(long, value_name = "MICROSECONDS")]
    nvme_idle_us: Option<u32>,

    /// Memory for pages in MiB [default: 256]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pool: Option<u64>,
}

impl ServeArgs {
    /// Returns the configuration: the file's, changed by the environment and the arguments.
    fn config(&self) -> Result<(Config, LogPlaceArgs), Failure> {
        let mut config = match &self.config {
            Some(path) => Config::read(path).map_err(|error| Failure::Usage(error.to_string()))?,
            None => Config::default(),
        };
        let mut log = self.log.clone();
        log.log_directory = log.log_directory.or(config.log_directory.take());
        if let (None, Some(device)) = (log.log_device, &config.log_device) {
            let device = parse(device).map_err(|error| {
                Failure::Usage(format!("log-device in the file of configuration: {error}"))
            })?;
            log.log_device = Some(device);
        }
        let options = &mut config.options;
        bind(&mut options.bind, &self.bind, self.port);
        bind(&mut options.tls_bind, &self.bind, None);
        fn set<T: Clone>(place: &mut T, given: &Option<T>) {
            if let Some(value) = given {
                place.clone_from(value);
            }
        }
        let or = |given: &Option<PathBuf>, file: Option<PathBuf>| given.clone().or(file);
        options.unixsocket = or(&self.unixsocket, options.unixsocket.take());
        options.aclfile = or(&self.aclfile, options.aclfile.take());
        options.http = self.http.or(options.http);
        options.requirepass = self
            .requirepass
            .clone()
            .or_else(|| std::env::var("BRAID_REQUIREPASS").ok())
            .or(options.requirepass.take());
        options.threads = self.threads.map(usize::from).or(options.threads);
        set(&mut options.maxclients, &self.maxclients);
        set(&mut options.timeout, &self.timeout.map(Duration::from_secs));
        config.nvme_idle_us = self.nvme_idle_us.or(config.nvme_idle_us);
        set(&mut config.pool_bytes, &self.pool.map(|mib| mib << 20));
        Ok((config, log))
    }
}

/// Changes addresses of the file as the arguments say. A server that only listens with TLS has none
/// without.
fn bind(addresses: &mut Vec<SocketAddr>, given: &[IpAddr], port: Option<u16>) {
    let Some(first) = addresses.first() else {
        return;
    };
    let port = port.unwrap_or(first.port());
    if !given.is_empty() {
        *addresses = given.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
    }
    for address in addresses {
        address.set_port(port);
    }
}

/// Opens the database as the configuration says.
fn open(dir: &Path, config: &Config, log: &LogPlaceArgs) -> Result<Database, braid::Error> {
    let mut builder = Database::builder()
        .pool_bytes(config.pool_bytes as usize)
        .on_health_change(|health| match health {
            Health::Good => tracing::info!("the database is healthy"),
            // The server has stopped, as its log says.
            Health::Closed => {}
            health => tracing::warn!(?health, "the health of the database has changed"),
        });
    if let Some(archive) = &config.archive_directory {
        builder = builder
            .archive(archive)
            .archive_interval(config.archive_interval);
    }
    if let Some(idle_us) = config.nvme_idle_us {
        builder = builder.nvme_idle_us(idle_us);
    }
    log.apply(builder).open(dir)
}

pub(crate) fn run(args: &ServeArgs, output: &mut Output) -> Result<(), Failure> {
    let (config, log) = args.config()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::io("cannot handle signals", &error))?;
    }
    start_log(&config);
    #[cfg(unix)]
    allow_connections(config.options.maxclients);
    let db = open(&args.dir, &config, &log)?;
    let server = Server::start(db.clone(), config.options)?;
    let addresses: Vec<String> = server
        .addresses()
        .iter()
        .map(SocketAddr::to_string)
        .chain(
            server
                .tls_addresses()
                .iter()
                .map(|address| format!("{address} (TLS)")),
        )
        .collect();
    output.line_now(format_args!(
        "{}: serving on {}",
        args.dir.display(),
        addresses.join(", ")
    ))?;
    tracing::info!(addresses = addresses.join(", "), "serving");
    if let Some(address) = server.http_address() {
        output.line_now(format_args!("pages at http://{address}/"))?;
    }
    // Systemd waits for this with `Type=notify`; without systemd nothing happens.
    #[cfg(target_os = "linux")]
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    // Relaxed: the flag carries nothing but itself.
    server.run(|| stop.load(Ordering::Relaxed));
    output.line_now(format_args!("{}: stopping", args.dir.display()))?;
    tracing::info!("stopping");
    db.close()?;
    Ok(())
}

/// Raises the limit of open files as far as the system lets, so that so many clients can connect:
/// shells and systemd start programs with a limit of 1024.
#[cfg(unix)]
fn allow_connections(clients: usize) {
    /// Files of the database, listeners, and what the runtime opens.
    const OTHERS: libc::rlim_t = 256;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls access the structure during the call only.
    let is_enough = unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return;
        }
        let wanted = (clients as libc::rlim_t).saturating_add(OTHERS);
        if limit.rlim_cur < wanted {
            limit.rlim_cur = wanted.min(limit.rlim_max);
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        limit.rlim_cur >= wanted
    };
    if !is_enough {
        tracing::warn!(
            files = %limit.rlim_cur,
            clients,
            "the limit of open files is too low for so many clients: raise it, or lower maxclients"
        );
    }
}

/// Writes the log to standard error from now on.
fn start_log(config: &Config) {
    let Some(level) = config.log_level else {
        return;
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr);
    // A program has one log; the tests of this one may have another.
    let _ = match config.log_format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Database(error) => error.into(),
            error => Failure::Failed(error.to_string()),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use braid_nvme::volume::FormatOptions;
    use braid_nvme::{Blocking, DriveName, Volume};
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    /// A file stands in for the drive.
    #[test]
    fn the_time_for_which_threads_poll_reaches_the_drive() {
        let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let drive = dir.path().join("drive");
        std::fs::File::create(&drive)
            .unwrap()
            .set_len(64 << 20)
            .unwrap();
        let formatted = (|| {
            let opened = DriveName::Path(drive.clone()).open()?;
            Volume::format(Blocking::new(opened.drive), FormatOptions::default())
        })();
        if let Err(error) = formatted {
            println!("SKIPPED: {error}");
            return;
        }
        let name = format!("nvme:{}/db", drive.display());
        let file = dir.path().join("serve.toml");
        std::fs::write(&file, "nvme-idle-us = 40\n").unwrap();
        let file = file.to_str().unwrap();
        for (given, expected) in [
            (&["--nvme-idle-us", "70"][..], 70),
            (&["--config", file], 40),
            (&["--config", file, "--nvme-idle-us", "5"], 5),
        ] {
            let line = [&["serve", &name, "--pool", "32"][..], given].concat();
            let args = Line::parse_from(line).args;
            let (config, log) = args.config().unwrap();
            let db = open(&args.dir, &config, &log).unwrap();
            let idle_us = braid_io::volume_idle_us(&args.dir).unwrap();
            assert_eq!(idle_us, Some(expected), "{given:?}");
            db.close().unwrap();
        }
    }
}
