//! `braid shell`: runs commands interactively or from a script.

mod complete;
mod parse;
mod session;

use std::env;
use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

use super::log_place::LogPlaceArgs;
use crate::failure::Failure;
use crate::output::{Output, complain};
use complete::Completion;
use session::{Flow, Session};

pub(crate) use session::no_table;

#[derive(Debug, clap::Args)]
pub(crate) struct ShellArgs {
    /// Directory of the database; no other process may have it open, except with --read-only
    dir: PathBuf,
    /// Run these commands, separated by semicolons, and exit
    #[arg(short, long, value_name = "COMMANDS")]
    command: Option<String>,
    /// Create the database if it is missing
    #[arg(long)]
    create: bool,
    /// Read only, even while another process writes; `refresh` moves to the newest durable state
    #[arg(long, conflicts_with = "create")]
    read_only: bool,
    #[command(flatten)]
    log: LogPlaceArgs,
}

pub(crate) fn run(args: &ShellArgs, output: &mut Output) -> Result<(), Failure> {
    let mut session = if args.read_only {
        Session::open_read_only(&args.dir, &args.log)?
    } else {
        Session::open(&args.dir, args.create, &args.log)?
    };
    if let Some(commands) = &args.command {
        session.line(commands, output)?;
    } else if io::stdin().is_terminal() {
        return interact(session, output);
    } else {
        script(&mut session, output)?;
    }
    session.close()
}

/// Runs commands from a pipe.
fn script(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    for (i, line) in io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|error| Failure::io("cannot read standard input", &error))?;
        match session.line(&line, output) {
            Ok(Flow::GoOn) => output.flush()?,
            Ok(Flow::Quit) => break,
            Err(Failure::BrokenPipe) => return Err(Failure::BrokenPipe),
            Err(failure) => return Err(Failure::Failed(format!("line {}: {failure}", i + 1))),
        }
    }
    Ok(())
}

/// Runs commands from a terminal.
fn interact(mut session: Session, output: &mut Output) -> Result<(), Failure> {
    let failed =
        |error: ReadlineError| Failure::Failed(format!("cannot use the terminal: {error}"));
    let config = Config::builder().auto_add_history(true).build();
    let mut editor: Editor<Completion, FileHistory> =
        Editor::with_config(config).map_err(failed)?;
    let history = history_file();
    if let Some(path) = &history {
        // The file is missing the first time.
        let _ = editor.load_history(path);
    }
    output.line_now("Type `help` for the commands, `quit` to exit.")?;
    loop {
        editor.set_helper(Some(Completion::new(session.table_names()?)));
        match editor.readline(session.prompt()) {
            Ok(line) => match session.line(&line, output) {
                Ok(Flow::GoOn) => {}
                Ok(Flow::Quit) => break,
                Err(Failure::BrokenPipe) => return Err(Failure::BrokenPipe),
                Err(failure) => complain(&failure.to_string()),
            },
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(failed(error)),
        }
        output.flush()?;
    }
    if let Some(path) = &history
        && let Err(error) = editor.save_history(path)
    {
        complain(&format!(
            "cannot save the history to {}: {error}",
            path.display()
        ));
    }
    session.close()
}

/// Returns the path of the history file, according to the XDG rules.
fn history_file() -> Option<PathBuf> {
    let state = match env::var_os("XDG_STATE_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => env::home_dir()?.join(".local/state"),
    };
    let dir = state.join("braid");
    fs::create_dir_all(&dir).ok()?;
    Some(dir.join("shell_history"))
}
