//! `braid completions` and `braid man`: files that a package of the command line installs.

use std::fs;
use std::path::PathBuf;

use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages, created if it is missing
    dir: PathBuf,
}

pub(crate) fn completions(
    args: &CompletionsArgs,
    mut command: clap::Command,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "braid", &mut script);
    output.line(String::from_utf8_lossy(&script).trim_end())
}

pub(crate) fn man(
    args: &ManArgs,
    command: clap::Command,
    output: &mut Output,
) -> Result<(), Failure> {
    let dir = args.dir.display();
    fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(command, &args.dir))
        .map_err(|error| {
            let what = format_args!("cannot write manual pages to {dir}");
            Failure::io(what, &error)
        })?;
    output.line(format_args!(
        "manual pages written to {dir}; read them with `man {dir}/braid.1`"
    ))
}
