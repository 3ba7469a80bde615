//! A file system that accepts `MAP_SYNC` and ignores it: the commands do not take its files for
//! persistent memory.
//!
//! No file system at hand does so. The test traces the command and removes the flag from its
//! system calls, so that the kernel maps the file as such a file system would.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::HashMap;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::ptr;

use crate::common::{braid_in, expect_code, stdout};

/// What a traced command printed, and its exit code.
struct Traced {
    code: i32,
    output: String,
    /// System calls from which `MAP_SYNC` was removed.
    changed: usize,
}

/// Runs `braid` in a directory, and removes `MAP_SYNC` from its system calls. Returns `None`, and
/// prints why, if the machine does not allow it.
fn without_map_sync(dir: &Path, args: &[&str]) -> Option<Traced> {
    let mut output = tempfile::tempfile().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(args).current_dir(dir).env_remove("TMPDIR");
    command.stdout(output.try_clone().unwrap());
    command.stderr(output.try_clone().unwrap());
    // SAFETY: the closure makes one system call, which is allowed between `fork` and `exec`.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("SKIPPED: the machine does not allow to trace a command: {error}");
            return None;
        }
    };
    let (code, changed) = Tracer::new(&child).run();
    let mut text = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut text).unwrap();
    Some(Traced {
        code,
        output: text,
        changed,
    })
}

/// Traces the threads of a command. All calls must come from the thread that started it.
struct Tracer {
    child: libc::pid_t,
    /// Threads within a system call, with the flags that it was called with if they were changed.
    calling: HashMap<libc::pid_t, Option<u64>>,
    changed: usize,
}

impl Tracer {
    fn new(child: &Child) -> Self {
        Self {
            child: child.id().try_into().unwrap(),
            calling: HashMap::new(),
            changed: 0,
        }
    }

    /// Lets the command run to its end. Returns its exit code.
    fn run(mut self) -> (i32, usize) {
        let (first, status) = wait();
        assert!(first == self.child && libc::WIFSTOPPED(status), "{status}");
        let options =
            libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
        // SAFETY: the thread is stopped, and the call accesses no memory.
        let set = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, first, 0, options) };
        assert_eq!(set, 0);
        resume(first, 0);
        loop {
            let (thread, status) = wait();
            if !libc::WIFSTOPPED(status) {
                self.calling.remove(&thread);
                if thread == self.child {
                    assert!(libc::WIFEXITED(status), "{status:#x}");
                    return (libc::WEXITSTATUS(status), self.changed);
                }
                continue;
            }
            match libc::WSTOPSIG(status) {
                signal if signal == libc::SIGTRAP | 0x80 => {
                    self.at_system_call(thread);
                    resume(thread, 0);
                }
                // `exec`, a thread that was started, or the first stop of one.
                libc::SIGTRAP | libc::SIGSTOP => resume(thread, 0),
                signal => resume(thread, signal),
            }
        }
    }

    /// Handles the begin or the end of a system call.
    fn at_system_call(&mut self, thread: libc::pid_t) {
        let mut registers = registers(thread);
        if let Some(flags) = self.calling.remove(&thread) {
            if let Some(flags) = flags {
                registers.r10 = flags;
                set_registers(thread, &registers);
            }
            return;
        }
        let flags = registers.r10;
        let sync = libc::MAP_SYNC as u64;
        let is_changed = registers.orig_rax == libc::SYS_mmap as u64 && flags & sync != 0;
        if is_changed {
            let validate = libc::MAP_SHARED_VALIDATE as u64;
            registers.r10 = flags & !(sync | validate) | libc::MAP_SHARED as u64;
            set_registers(thread, &registers);
            self.changed += 1;
        }
        self.calling.insert(thread, is_changed.then_some(flags));
    }
}

/// Waits for a change of a thread that this one traces.
fn wait() -> (libc::pid_t, i32) {
    let mut status = 0;
    // SAFETY: the pointer is valid. The flag excludes children of the other tests' threads.
    let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    assert!(thread > 0, "{}", std::io::Error::last_os_error());
    (thread, status)
}

/// Continues a thread up to the begin or the end of its next system call. A thread that was killed
/// meanwhile cannot be continued; its end is reported.
fn resume(thread: libc::pid_t, signal: i32) {
    // SAFETY: the call accesses no memory.
    unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, 0, signal) };
}

fn registers(thread: libc::pid_t) -> libc::user_regs_struct {
    // SAFETY: a structure of integers.
    let mut registers = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid, for registers of this processor.
    unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGS,
            thread,
            ptr::null::<u8>(),
            &raw mut registers,
        )
    };
    registers
}

fn set_registers(thread: libc::pid_t, registers: &libc::user_regs_struct) {
    // SAFETY: the pointer is valid, for registers of this processor.
    let set = unsafe {
        libc::ptrace(
            libc::PTRACE_SETREGS,
            thread,
            ptr::null::<u8>(),
            ptr::from_ref(registers),
        )
    };
    assert_eq!(set, 0);
}

#[test]
fn a_file_system_that_ignores_map_sync_is_not_persistent_memory() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = directory.path();
    let run = |args: &[&str]| without_map_sync(dir, args);
    let create = ["pmem", "create", "region", "--size", "2", "--kind"];

    let Some(refused) = run(&[&create[..], &["dax"]].concat()) else {
        return;
    };
    assert!(refused.changed > 0, "{}", refused.output);
    assert_eq!(refused.code, 1, "{}", refused.output);
    let what_to_do = "choose an ordinary file (`file`) or another file system";
    assert!(refused.output.contains(what_to_do), "{}", refused.output);
    assert!(!dir.join("region").exists(), "a file was left");

    // `auto` takes the file for what it is.
    let created = run(&[&create[..], &["auto"]].concat()).unwrap();
    assert_eq!(created.code, 0, "{}", created.output);
    assert!(created.output.contains("(file"), "{}", created.output);
    let info = run(&["pmem", "info", "region"]).unwrap();
    assert_eq!(info.code, 0, "{}", info.output);

    let demo = ["demo", "--dir", "db", "--seconds", "1", "--device"];
    let opened = run(&[&demo[..], &["pmem"]].concat()).unwrap();
    assert!(opened.changed > 0, "{}", opened.output);
    assert_ne!(opened.code, 0, "{}", opened.output);
    assert!(opened.output.contains(what_to_do), "{}", opened.output);
    assert!(
        !dir.join("db/data.braid").exists(),
        "a database was created"
    );

    let slow = braid_in(dir, &["pmem", "check", "region"]);
    expect_code(&slow, 0);
    assert!(stdout(&slow).contains("sound"));
}
