//! Mutation testing of the engine with mutant schemata (Untch, Offutt, Harrold, ISSTA 1993).
//!
//! A copy of the workspace contains every mutant: each mutation point has both variants, and a
//! number chosen at run time decides which one is executed. So there is one build, not one per
//! mutant. `docs/testing.md` describes the stages.

mod build;
mod chosen {
    pub const SOURCE: &str = include_str!("chosen.rs");
}
mod points;
mod process;
mod run;
mod survivors;
mod tests;

use std::path::{Path, PathBuf};

const USAGE: &str = "\
usage: mutate build [--tests] [FILE...]   copy, rewrite and build the workspace, with its test binaries
       mutate run [OPTION...] [ID...]     run these mutants, or those without a result in random order
       mutate survivors [--all]           list the mutants that no run caught and survivors.txt does not explain
FILE is relative to the workspace; the default is the core (`CORE` in build.rs).
options: --jobs N        run N mutants at a time (1)
         --sample N      run N mutants
         --seed N        choose the order (1)
         --minutes N     begin no mutant after N minutes
         --scan N        look in N histories for those that a mutant affects (3000)
         --histories N   run at most N of them (300)
         --budget N      run a mutant in tests of N seconds of processor time, the quickest first (60)
         --quick         a first look: 20 of 100 histories, tests of a second at most, 2 seconds of them
         --no-tests      run no test binaries
         --again         run also the mutants that survived before";

/// Directories of the tool.
pub struct Places {
    /// The workspace that is copied.
    pub workspace: PathBuf,
    /// Output of the tool.
    pub output: PathBuf,
}

impl Places {
    fn find() -> Self {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let workspace = workspace
            .expect("tools/mutate is in the workspace")
            .to_owned();
        let output = workspace.join("target/mutate");
        Self { workspace, output }
    }

    pub fn tree(&self) -> PathBuf {
        self.output.join("tree")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.output.join(name)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let places = Places::find();
    match arguments.first().map(String::as_str) {
        Some("build") => build::build(&places, &arguments[1..]),
        Some("run") => run::run(&places, &arguments[1..]),
        Some("survivors") => survivors::survivors(&places, &arguments[1..]),
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}
