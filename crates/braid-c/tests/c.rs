//! The interface as C sees it: programs in `tests/c`, compiled with warnings as errors under the
//! address and undefined behaviour sanitizers, linked with the library that cargo built, and run.
//!
//! The tests use every installed C compiler (`cc`, and `clang` if it is another one), concurrently,
//! and report missing ones. Programs link the shared library, which takes a moment; one of them,
//! and the example, link the static one.

mod built;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use built::{INTERFACE, library};
use tempfile::TempDir;

const SYSTEM_LIBRARIES: [&str; 3] = ["-lpthread", "-ldl", "-lm"];
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Links the shared library's name for the dynamic linker to the library, in a directory for
/// `LD_LIBRARY_PATH`.
fn name_for_loading(library: &Path, dir: &Path) {
    #[cfg(unix)]
    if library.extension() == Some(OsStr::new("so")) {
        let name = format!("libbraid_c.so.{INTERFACE}");
        std::os::unix::fs::symlink(library, dir.join(name)).unwrap();
    }
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

struct Compiler {
    name: &'static str,
    flags: Vec<&'static str>,
}

/// Returns the installed C compilers.
fn compilers() -> &'static [Compiler] {
    static FOUND: OnceLock<Vec<Compiler>> = OnceLock::new();
    FOUND.get_or_init(|| ["cc", "clang"].into_iter().filter_map(find).collect())
}

/// Returns a compiler of C or C++, if it is installed and compiles for this machine.
fn find(name: &'static str) -> Option<Compiler> {
    let Some(machine) = output(Command::new(name).arg("-dumpmachine")) else {
        println!("SKIPPED: there is no {name}");
        return None;
    };
    if !machine.starts_with(std::env::consts::ARCH) {
        println!("SKIPPED: {name} compiles for {}", machine.trim());
        return None;
    }
    let version = output(Command::new(name).arg("--version")).unwrap_or_default();
    if name == "cc" && version.contains("clang") && find("clang").is_some() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("main.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut command = Command::new(name);
    command.args(SANITIZERS).arg(&source);
    command.arg("-o").arg(dir.path().join("main"));
    let mut flags = vec!["-g", "-O1"];
    if output(&mut command).is_some()
        && output(&mut Command::new(dir.path().join("main"))).is_some()
    {
        flags.extend(SANITIZERS);
    } else {
        println!("SKIPPED: {name} has no sanitizers here; its programs run without");
    }
    Some(Compiler { name, flags })
}

impl Compiler {
    fn c(&self, source: &Path, dir: &Path, library: &OsStr) -> PathBuf {
        let program = dir.join(format!(
            "{}-{}",
            self.name,
            source.file_stem().unwrap().display()
        ));
        let mut command = Command::new(self.name);
        command
            .args([
                "-std=c99",
                "-D_POSIX_C_SOURCE=200809L",
                "-pedantic",
                "-Wall",
                "-Wextra",
                "-Werror",
            ])
            .args(&self.flags)
            .arg("-I")
            .arg(crate_dir().join("include"))
            .arg("-o")
            .arg(&program)
            .arg(source)
            .arg(library)
            .args(SYSTEM_LIBRARIES);
        succeed(&mut command);
        program
    }
}

/// Runs a command, and shows its output if it fails.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

/// Compiles a program with each compiler, and runs it with each list of arguments in turn, in a new
/// directory, whose path replaces `{dir}`.
fn run(program: &str, arguments: &[&[&str]]) {
    run_in(program, arguments, |_| {});
}

fn run_in(program: &str, arguments: &[&[&str]], prepare: impl Fn(&Path) + Sync) {
    run_with(program, arguments, &library("libbraid_c.so"), prepare);
}

fn run_with(program: &str, arguments: &[&[&str]], library: &Path, prepare: impl Fn(&Path) + Sync) {
    let source = crate_dir().join("tests/c").join(program);
    by_each_compiler(|compiler, dir| {
        prepare(dir);
        let binary = compiler.c(&source, dir, library.as_os_str());
        let libraries = tempfile::tempdir().unwrap();
        name_for_loading(library, libraries.path());
        for arguments in arguments {
            let place = dir.display().to_string();
            let arguments = arguments
                .iter()
                .map(|argument| argument.replace("{dir}", &place));
            let mut command = Command::new(&binary);
            command.env("LD_LIBRARY_PATH", libraries.path());
            let said = succeed(command.args(arguments));
            assert_eq!(said, "ok\n", "{program} by {}", compiler.name);
        }
    });
}

/// Calls `f` for all compilers concurrently, each with a new directory.
fn by_each_compiler(f: impl Fn(&Compiler, &Path) + Sync) {
    std::thread::scope(|scope| {
        for compiler in compilers() {
            let f = &f;
            scope.spawn(move || f(compiler, tempfile::tempdir().unwrap().path()));
        }
    });
}

#[test]
fn tables_transactions_snapshots_and_cursors() {
    run("basics.c", &[&[]]);
}

#[test]
fn savepoints_options_loads_names_and_changes() {
    run("features.c", &[&[]]);
}

#[test]
fn backups_and_reading_only() {
    run("backup.c", &[&["{dir}"]]);
}

#[test]
fn wrong_calls_are_statuses() {
    run("misuse.c", &[&[]]);
}

#[test]
fn commits_in_flight() {
    run("async.c", &[&["{dir}/db"]]);
}

#[test]
fn a_child_made_by_fork_is_refused() {
    run("fork.c", &[&["{dir}/db"]]);
}

/// The reader and the writer are two processes.
#[test]
#[cfg(target_os = "linux")]
fn a_reader_follows_a_writer() {
    run("readers.c", &[&["{dir}"]]);
}

#[test]
fn threads_share_handles() {
    run("threads.c", &[&["{dir}/db"]]);
}

#[test]
fn databases_in_directories() {
    let typed_table = |dir: &Path| {
        let db = braid::Database::open(dir.join("typed")).unwrap();
        db.open_table::<u64, u64>("numbers").unwrap();
        db.close().unwrap();
    };
    let runs: [&[&str]; 4] = [
        &["write", "{dir}/db"],
        &["read", "{dir}/db"],
        &["refused", "{dir}"],
        &["tablespaces", "{dir}/spaces"],
    ];
    run_in("files.c", &runs, typed_table);
}

/// Runs the manual's example twice: the second run finds what the first one committed.
#[test]
fn the_example_runs() {
    let source = crate_dir().join("examples/bank.c");
    by_each_compiler(|compiler, dir| {
        let binary = compiler.c(&source, dir, library("libbraid_c.a").as_os_str());
        for _ in 0..2 {
            let said = succeed(Command::new(&binary).arg(dir.join("bank")));
            assert!(said.contains("total: 10000"), "{said}");
        }
    });
}

/// The first program in the manual is complete.
#[test]
fn the_shortest_program_runs() {
    let manual = crate_dir().join("../../docs/c-api.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let program = manual
        .split("```c\n")
        .map(|block| block.split("```").next().unwrap())
        .find(|block| block.contains("int main"));
    let library = library("libbraid_c.so");
    by_each_compiler(|compiler, dir| {
        let source = dir.join("shortest.c");
        std::fs::write(&source, program.expect("the manual has a program")).unwrap();
        let binary = compiler.c(&source, dir, library.as_os_str());
        let mut command = Command::new(binary);
        name_for_loading(&library, dir);
        command.env("LD_LIBRARY_PATH", dir);
        assert_eq!(succeed(command.current_dir(dir)), "Call me Ishmael.\n");
    });
}

#[test]
fn the_static_library_links() {
    run_with("basics.c", &[&[]], &library("libbraid_c.a"), |_| {});
}

#[test]
fn the_header_is_cpp_too() {
    let source = crate_dir().join("tests/c/header.cpp");
    for compiler in ["c++", "clang++"].into_iter().filter_map(find) {
        let dir: TempDir = tempfile::tempdir().unwrap();
        let program = dir.path().join("header");
        succeed(
            Command::new(compiler.name)
                .args(["-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror"])
                .args(&compiler.flags)
                .arg("-I")
                .arg(crate_dir().join("include"))
                .arg(&source)
                .arg("-o")
                .arg(&program)
                .arg(library("libbraid_c.a"))
                .args(SYSTEM_LIBRARIES),
        );
        assert_eq!(succeed(&mut Command::new(&program)), "ok\n");
    }
}
