//! A C program that uses pkg-config builds and runs with the files that `scripts/install-c.sh`
//! installed.

#![cfg(target_os = "linux")]

mod built;

use std::path::Path;
use std::process::Command;

use built::{INTERFACE, library};

fn has(tool: &str) -> bool {
    let has = Command::new(tool).arg("--version").output();
    let has = has.is_ok_and(|output| output.status.success());
    if !has {
        println!("SKIPPED: there is no {tool}");
    }
    has
}

/// Runs a command; returns its standard output without the final line break.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{error}");
    said.trim_end().to_owned()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the command that installs the libraries that cargo built for these tests.
fn install(prefix: &Path) -> Command {
    let mut command = Command::new(root().join("scripts/install-c.sh"));
    let library = library("libbraid_c.so");
    command
        .arg(prefix)
        .env("BUILT", library.parent().unwrap())
        .env_remove("DESTDIR")
        .env_remove("LIBDIR")
        .env_remove("INCLUDEDIR");
    command
}

/// Builds the program of tests/c/basics.c with a shell, with these compiler arguments.
fn compile(prefix: &Path, arguments: &str, program: &Path) {
    let source = root().join("crates/braid-c/tests/c/basics.c");
    let line =
        format!("cc -std=c99 -D_POSIX_C_SOURCE=200809L \"$SOURCE\" {arguments} -o \"$PROGRAM\"");
    succeed(
        Command::new("sh")
            .args(["-c", &line])
            .env("SOURCE", source)
            .env("PROGRAM", program)
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
    );
}

#[test]
fn a_program_builds_and_runs_with_the_installed_files() {
    if !has("pkg-config") || !has("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    succeed(&mut install(&prefix));
    let version = succeed(
        Command::new("pkg-config")
            .args(["--modversion", "braid"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
    );
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    // Without debug information, which is most of the file.
    let size = |path: &Path| std::fs::metadata(path).unwrap().len();
    let (built, installed) = (library("libbraid_c.a"), prefix.join("lib/libbraid_c.a"));
    if has("strip") {
        assert!(size(&installed) < size(&built) * 3 / 4);
    }

    let with_static = dir.path().join("static");
    let flags = "$(pkg-config --cflags --libs --static braid | \
                 sed 's/-lbraid_c/-l:libbraid_c.a/')";
    compile(&prefix, flags, &with_static);
    assert_eq!(succeed(&mut Command::new(&with_static)), "ok");

    let with_shared = dir.path().join("shared");
    compile(&prefix, "$(pkg-config --cflags --libs braid)", &with_shared);
    let run = || {
        let mut command = Command::new(&with_shared);
        command.env("LD_LIBRARY_PATH", prefix.join("lib"));
        command
    };
    assert_eq!(succeed(&mut run()), "ok");
    // The program requests the interface that it was built with, not any libbraid_c.so.
    let name = format!("libbraid_c.so.{INTERFACE}");
    std::fs::remove_file(prefix.join("lib").join(&name)).unwrap();
    let output = run().output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains(&name), "{error}");
}

#[test]
fn packagers_install_into_a_staging_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = install(Path::new("/usr"));
    command.env("DESTDIR", dir.path());
    command.env("LIBDIR", "/usr/lib/some-machine");
    succeed(&mut command);
    let lib = dir.path().join("usr/lib/some-machine");
    for file in ["libbraid_c.a", "libbraid_c.so", "pkgconfig/braid.pc"] {
        // Follow the links: none may point out of the directory.
        assert!(lib.join(file).is_file(), "no {file}");
    }
    assert!(dir.path().join("usr/include/braid.h").is_file());
    let described = std::fs::read_to_string(lib.join("pkgconfig/braid.pc")).unwrap();
    assert!(
        described.contains("\nlibdir=/usr/lib/some-machine\n"),
        "{described}"
    );
    assert!(
        !described.contains(dir.path().to_str().unwrap()),
        "{described}"
    );
}

#[test]
fn a_static_library_above_the_limit_is_not_installed() {
    if !has("strip") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    let output = install(&prefix)
        .env("STATIC_LIMIT", "1000")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("more than the limit of 1000"), "{error}");
    assert!(!prefix.exists());
    // As large as it is, it is installed.
    let size = library("libbraid_c.a").metadata().unwrap().len();
    succeed(install(&prefix).env("STATIC_LIMIT", size.to_string()));
    assert!(prefix.join("lib/libbraid_c.a").is_file());
}

#[test]
fn a_call_without_a_prefix_installs_nothing() {
    for arguments in [&[][..], &["--help"], &["a", "b"]] {
        let mut command = Command::new(root().join("scripts/install-c.sh"));
        let output = command.args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.contains("install-c.sh PREFIX") && error.contains("BUILT"),
            "{error}"
        );
    }
}
