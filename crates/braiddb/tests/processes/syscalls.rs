//! System calls of a running process begin to fail: a seccomp filter makes the kernel refuse them,
//! in all threads at once. Needs no rights and no tools.

use std::io;

use braid::Protocol;
use braid::device::DeviceChoice;

use crate::parent::{Running, Trial, devices, directory, rng};
use crate::workload::THREADS;

/// Executes an order of the parent, such as `dsync 5`: from now on, system calls of this kind fail
/// with this error number.
pub(crate) fn deny(order: &str) {
    let Some((sort, errno)) = order.split_once(' ') else {
        return;
    };
    let errno = errno.parse().expect("a number");
    let program = match sort {
        "dsync" => refuse(&[libc::SYS_pwritev2], Some(libc::RWF_DSYNC as u32), errno),
        "write" => refuse(&[libc::SYS_pwritev2], None, errno),
        "read" => refuse(&[libc::SYS_pread64], None, errno),
        "sync" => refuse(&[libc::SYS_fdatasync, libc::SYS_fsync], None, errno),
        "ring" => refuse(&[libc::SYS_io_uring_enter], None, errno),
        _ => panic!("unknown order {order:?}"),
    };
    install(&program).expect("seccomp");
}

/// Offsets in the filter's input: the system call's number, and the low half of its last argument.
const NUMBER: u32 = 0;
const LAST_ARGUMENT: u32 = 16 + 5 * 8;

fn statement(code: u32, k: u32) -> libc::sock_filter {
    jump(code, k, 0, 0)
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Builds a filter that refuses some calls, with `flag` only those that have it in their last
/// argument, and allows everything else.
fn refuse(calls: &[libc::c_long], flag: Option<u32>, errno: u32) -> Vec<libc::sock_filter> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let mut program = vec![statement(BPF_LD | BPF_W | BPF_ABS, NUMBER)];
    for (i, &call) in calls.iter().enumerate() {
        // Jumps past the remaining tests and the `allow` after them.
        let to = (calls.len() - i) as u8;
        program.push(jump(BPF_JMP | BPF_JEQ | BPF_K, call as u32, to, 0));
    }
    program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    if let Some(flag) = flag {
        program.push(statement(BPF_LD | BPF_W | BPF_ABS, LAST_ARGUMENT));
        program.push(jump(BPF_JMP | BPF_JSET | BPF_K, flag, 1, 0));
        program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    }
    program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno));
    program
}

/// Installs a filter on all threads of this process.
fn install(program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: a plain call without memory.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the program, which lives until the call returns, and only reads it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &program,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs a child for a while, makes its calls fail, and reads until its threads have ended.
fn torment(trial: &mut Trial<'_>, acknowledgements: u64, order: &str) -> Running {
    let mut child = trial.start();
    child.acknowledgements(trial, acknowledgements);
    child.order(order);
    child.until(trial, |line| line == "denied");
    child
}

/// Durable writes of the log fail: the engine stops and acknowledges nothing more, which the child
/// checks. The next process finds everything that was acknowledged.
#[test]
fn failing_log_writes_poison_and_lose_nothing() {
    let mut rng = rng("log writes");
    let dir = directory();
    let devices = devices(dir.path());
    let errors = [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EIO];
    for (round, &protocol) in Protocol::ALL.iter().enumerate() {
        let device = devices[round % devices.len()];
        let dir = dir.path().join(round.to_string());
        let mut trial = Trial::new(&dir, protocol, device);
        let sort = ["dsync", "write"][round / 2 % 2];
        let order = format!("{sort} {}", errors[round % errors.len()]);
        let mut child = torment(&mut trial, rng.u64(10..100), &order);
        // All threads end by themselves after some failures.
        child.until_all(&mut trial, |child| child.ended == THREADS);
        let last = child.finish(&mut trial);
        assert_eq!(last, "failed close Poisoned", "{}: {order}", trial.what());
        assert!(
            child.has_failed("failed commit Poisoned"),
            "{}: {order}: {:?}",
            trial.what(),
            child.failures
        );
        trial.verify();
        assert!(trial.verified > 0);
    }
}

/// Syncs fail: no further checkpoint is published, commits continue as long as the log has files,
/// and nothing is lost.
#[test]
fn failing_syncs_end_checkpoints_and_lose_nothing() {
    let mut rng = rng("syncs");
    let dir = directory();
    for device in devices(dir.path()) {
        let dir = dir.path().join(device.to_string());
        let mut trial = Trial::new(&dir, Protocol::Glsn, device);
        let order = format!("sync {}", libc::EIO);
        let mut child = torment(&mut trial, rng.u64(10..100), &order);
        child.until_all(&mut trial, |child| child.has_failed("failed checkpoint Io"));
        child.finish(&mut trial);
        assert!(child.has_failed("failed close Poisoned"));
        assert!(
            !child.has_failed("failed commit Poisoned"),
            "{:?}",
            child.failures
        );
        trial.verify();
        assert!(trial.verified > 0);
    }
}

/// The kernel refuses the ring itself, for good or with "try again": that is an error, and no
/// thread spins forever.
#[test]
fn a_ring_that_is_refused_fails_checkpoints_and_loses_nothing() {
    let mut rng = rng("rings");
    let dir = directory();
    if !devices(dir.path()).contains(&DeviceChoice::Uring) {
        return;
    }
    for errno in [libc::EIO, libc::EAGAIN] {
        let dir = dir.path().join(format!("db-{errno}"));
        let mut trial = Trial::new(&dir, Protocol::Glsn, DeviceChoice::Uring);
        let order = format!("ring {errno}");
        let mut child = torment(&mut trial, rng.u64(10..100), &order);
        child.until_all(&mut trial, |child| child.has_failed("failed checkpoint Io"));
        child.until(&mut trial, |line| line.starts_with("ack "));
        child.finish(&mut trial);
        trial.verify();
        assert!(trial.verified > 0);
    }
}

/// A file that cannot be read is not treated as missing.
#[test]
fn failing_reads_are_errors_and_change_nothing() {
    let dir = directory();
    let place = dir.path().join("db");
    let mut trial = Trial::new(&place, Protocol::Glsn, DeviceChoice::File);
    let mut child = trial.start();
    child.acknowledgements(&mut trial, 50);
    child.kill(&mut trial);
    let mut child = trial.start_denied(&format!("read {}", libc::EIO));
    child.until(&mut trial, |line| line.starts_with("refused Io"));
    child.finish(&mut trial);
    trial.verify();
    assert!(trial.verified > 0);
}

/// Nothing may be acknowledged in a directory that a loss of power can remove.
#[test]
fn a_directory_whose_name_cannot_be_made_durable_gets_no_database() {
    let dir = directory();
    let place = dir.path().join("above").join("db");
    let mut trial = Trial::new(&place, Protocol::Glsn, DeviceChoice::File);
    let mut child = trial.start_denied(&format!("sync {}", libc::EIO));
    child.until(&mut trial, |line| line.starts_with("refused Io"));
    child.finish(&mut trial);
    assert!(!place.exists());
    // Another attempt continues the creation.
    let mut child = trial.start();
    child.acknowledgements(&mut trial, 20);
    child.kill(&mut trial);
    trial.verify();
    assert!(trial.verified > 0);
}
