//! `braid serve`: serves a database to Redis clients.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use braid::Database;
use braid_server::{Server, ServerError, ServerOptions};

use super::log_place::LogPlaceArgs;
use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Directory of the database; created if it does not exist
    dir: PathBuf,

    #[command(flatten)]
    log: LogPlaceArgs,

    /// Addresses to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", num_args = 1..)]
    bind: Vec<IpAddr>,

    /// Port to listen on; 0 lets the system choose one
    #[arg(long, default_value = "6379")]
    port: u16,

    /// Path of a Unix socket to listen on as well
    #[arg(long, value_name = "PATH")]
    unixsocket: Option<PathBuf>,

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

    /// Most connections
    #[arg(long, value_name = "COUNT", default_value = "10000")]
    maxclients: usize,

    /// Longest silence of a client before its connection ends; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    timeout: u64,

    /// Memory for pages in MiB
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pool: u64,
}

pub(crate) fn run(args: &ServeArgs, output: &mut Output) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::io("cannot handle signals", &error))?;
    }
    let builder = Database::builder().pool_bytes((args.pool << 20) as usize);
    let db = args.log.apply(builder).open(&args.dir)?;
    let options = ServerOptions {
        bind: args
            .bind
            .iter()
            .map(|ip| SocketAddr::new(*ip, args.port))
            .collect(),
        unixsocket: args.unixsocket.clone(),
        threads: args.threads.map(usize::from),
        requirepass: args
            .requirepass
            .clone()
            .or_else(|| std::env::var("BRAID_REQUIREPASS").ok()),
        aclfile: args.aclfile.clone(),
        maxclients: args.maxclients,
        timeout: Duration::from_secs(args.timeout),
        ..ServerOptions::default()
    };
    let server = Server::start(db.clone(), options)?;
    let addresses: Vec<String> = server
        .addresses()
        .iter()
        .map(SocketAddr::to_string)
        .collect();
    output.line_now(format_args!(
        "{}: serving on {}",
        args.dir.display(),
        addresses.join(", ")
    ))?;
    // Systemd waits for this with `Type=notify`; without systemd nothing happens.
    #[cfg(target_os = "linux")]
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    // Relaxed: the flag carries nothing but itself.
    server.run(|| stop.load(Ordering::Relaxed));
    output.line_now(format_args!("{}: stopping", args.dir.display()))?;
    db.close()?;
    Ok(())
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Database(error) => error.into(),
            error => Failure::Failed(error.to_string()),
        }
    }
}
