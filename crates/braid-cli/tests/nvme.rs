//! `braid nvme`, and the other commands on databases on a volume. A file stands in for the drive.

#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{braid_in, expect_code, stderr, stdout};

struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self::with_length(64 << 20)
    }

    /// A drive of this many bytes, in a sparse file.
    fn with_length(length: u64) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let file = File::create(directory.path().join("drive")).unwrap();
        file.set_len(length).unwrap();
        Self { directory }
    }

    /// A formatted drive; `None` where io_uring or direct I/O is missing.
    fn formatted() -> Option<Self> {
        Self::new().format()
    }

    fn format(self) -> Option<Self> {
        let fixture = self;
        let output = braid_in(fixture.directory.path(), &["nvme", "format", "drive"]);
        if output.status.success() {
            assert!(stdout(&output).contains("formatted, "));
            return Some(fixture);
        }
        println!("SKIPPED: {}", stderr(&output));
        None
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("drive")
    }

    #[track_caller]
    fn run(&self, args: &[&str], code: i32) -> (String, String) {
        let output = braid_in(self.directory.path(), args);
        expect_code(&output, code);
        (stdout(&output), stderr(&output))
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(self.file()).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }
}

#[test]
fn a_volume_is_created_shown_and_sound() {
    let Some(fixture) = Fixture::formatted() else {
        return;
    };
    let (out, _) = fixture.run(&["nvme", "info", "drive"], 0);
    for part in [
        "drive         nvme:drive",
        "path          uring",
        "FUA",
        "0 files",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let insert = [
        "shell",
        "nvme:drive/library",
        "--create",
        "-c",
        "create t u64 string; put t 1 one",
    ];
    fixture.run(&insert, 0);
    let (out, _) = fixture.run(&["nvme", "info", "nvme:drive", "--json"], 0);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["contents"], "a Braid volume");
    assert_eq!(json["volume"]["databases"][0]["name"], "library");
    assert_eq!(json["volume"]["volume"]["unit_bytes"], 65536);
    let (out, _) = fixture.run(&["nvme", "fsck", "drive"], 0);
    assert!(out.contains("nvme:drive: sound ("), "{out}");
    fixture.run(&["verify", "nvme:drive/library"], 0);
    let (out, _) = fixture.run(&["stat", "nvme:drive/library"], 0);
    assert!(out.contains("nvme"), "{out}");
    let (_, err) = fixture.run(&["verify", "nvme:drive/other"], 1);
    assert!(err.contains("contains no data.braid"), "{err}");
    let (_, err) = fixture.run(&["nvme", "remove", "drive", "other"], 1);
    assert!(err.contains("no database \"other\""), "{err}");
    let (out, _) = fixture.run(&["nvme", "remove", "drive", "library"], 0);
    assert!(out.contains("nvme:drive/library: removed"), "{out}");
    fixture.run(&["verify", "nvme:drive/library"], 1);
    let (out, _) = fixture.run(&["nvme", "fsck", "drive"], 0);
    assert!(out.contains("sound (0 files)"), "{out}");
}

/// Whatever is on a drive stays there, unless forced.
#[test]
fn a_drive_with_something_on_it_is_not_formatted() {
    let Some(fixture) = Fixture::formatted() else {
        return;
    };
    let (_, err) = fixture.run(&["nvme", "format", "drive"], 1);
    assert!(err.contains("it contains a Braid volume"), "{err}");
    assert!(err.contains("add --force"), "{err}");
    fixture.run(&["nvme", "format", "drive", "--force", "--unit", "4096"], 0);
    fixture.run(&["nvme", "fsck", "drive"], 0);
    let kinds: [(u64, &[u8], &str); 4] = [
        (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
        (512, b"EFI PART", "a GPT partition table"),
        (510, b"\x55\xaa", "a boot sector"),
        (70_000, b"letters", "bytes of an unknown kind"),
    ];
    for (offset, bytes, what) in kinds {
        fixture.write(0, &vec![0; 1 << 20]);
        fixture.write(offset, bytes);
        let before = fs::read(fixture.file()).unwrap();
        let (_, err) = fixture.run(&["nvme", "format", "drive"], 1);
        assert!(err.contains(what), "{err}");
        let (_, err) = fixture.run(&["nvme", "fsck", "drive"], 1);
        assert!(err.contains("no Braid volume"), "{err}");
        let (out, _) = fixture.run(&["nvme", "info", "drive"], 0);
        assert!(out.contains(&format!("none: {what}")), "{out}");
        assert!(fs::read(fixture.file()).unwrap() == before, "{what}");
    }
    fixture.run(&["nvme", "format", "drive", "--force"], 0);
    let (_, err) = fixture.run(&["nvme", "format", "drive", "--force", "--unit", "5"], 1);
    assert!(err.contains("a unit of 5 bytes"), "{err}");
    fixture.run(&["nvme", "fsck", "drive"], 0);
    let (_, err) = fixture.run(&["nvme", "format", "missing"], 1);
    assert!(err.contains("cannot open drive nvme:missing"), "{err}");
}

/// Not even by force. The file `/proc/self/mountinfo` names the drive.
#[test]
fn the_drive_with_the_root_file_system_is_never_formatted() {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata("/").unwrap().dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let Ok(at) = PathBuf::from("/sys/dev/block").join(number).canonicalize() else {
        return println!("SKIPPED: the root file system is on no block device");
    };
    let drive = PathBuf::from("/dev").join(at.file_name().unwrap());
    if !drive.exists() {
        return println!("SKIPPED: {} does not exist", drive.display());
    }
    let fixture = Fixture::new();
    let (_, err) = fixture.run(&["nvme", "format", drive.to_str().unwrap(), "--force"], 1);
    assert!(err.contains("the drive with the root file system"), "{err}");
}

#[test]
fn damage_is_listed_and_nothing_changes() {
    let Some(fixture) = Fixture::formatted() else {
        return;
    };
    fixture.run(
        &[
            "shell",
            "nvme:drive/library",
            "--create",
            "-c",
            "create t u64 string; put t 1 one",
        ],
        0,
    );
    fixture.write(0, &[7; 64]);
    let (out, _) = fixture.run(&["nvme", "fsck", "drive"], 0);
    assert!(
        out.contains("note: the first superblock is unreadable"),
        "{out}"
    );
    fixture.write(512 << 10, &[7; 64]);
    let before = fs::read(fixture.file()).unwrap();
    let (_, err) = fixture.run(&["nvme", "fsck", "drive"], 1);
    assert!(err.contains("nvme:drive: "), "{err}");
    let (_, err) = fixture.run(&["verify", "nvme:drive/library"], 1);
    assert!(err.contains("nvme:drive/library"), "{err}");
    assert!(fs::read(fixture.file()).unwrap() == before);
}

/// The worker is killed and recovers on the volume.
#[test]
fn the_demo_runs_on_a_volume() {
    // A fast machine writes more than a hundred megabytes of log.
    let Some(fixture) = Fixture::with_length(4 << 30).format() else {
        return;
    };
    let args = [
        "demo",
        "--dir",
        "nvme:drive/bank",
        "--seconds",
        "3",
        "--kills",
        "2",
    ];
    let (out, _) = fixture.run(&args, 0);
    assert!(out.contains("--seed"), "{out}");
    fixture.run(&["verify", "nvme:drive/bank"], 0);
    fixture.run(&["nvme", "fsck", "drive"], 0);
}

#[test]
fn controllers_are_listed_and_addresses_checked() {
    let fixture = Fixture::new();
    let (out, _) = fixture.run(&["nvme", "list", "--json"], 0);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert!(json["controllers"].is_array());
    fixture.run(&["nvme", "list"], 0);
    for command in ["bind", "unbind"] {
        let (_, err) = fixture.run(&["nvme", command, "ffff:ff:1f.7"], 1);
        assert!(err.contains("no NVMe controller"), "{err}");
    }
}

#[test]
fn the_paper_s_figures_are_measured_on_named_drives() {
    // Room for a log, although the file is sparse.
    let Some(fixture) = Fixture::with_length(4 << 30).format() else {
        return;
    };
    let quick = [
        "--seconds",
        "0.01",
        "--threads",
        "1,2",
        "--records",
        "300",
        "--dir",
        "here",
        "--drive",
    ];
    let measure = |drives: &[&str], code| {
        let args = [&["bench", "paper", "nvme"], &quick[..], drives].concat();
        fixture.run(&args, code)
    };
    let (out, _) = measure(&["drive"], 0);
    assert!(out.contains("User-level NVMe: YCSB load (tra"), "{out}");
    let csv = fixture.directory.path().join("paper-figures/nvme-load.csv");
    let csv = fs::read_to_string(csv).unwrap();
    let points = |series| csv.lines().filter(|line| line.starts_with(series)).count();
    assert_eq!(points("io_uring on a file,"), 2, "{csv}");
    assert_eq!(points("file system,"), 2, "{csv}");
    let (out, _) = fixture.run(&["nvme", "info", "drive"], 0);
    assert!(!out.contains("database"), "the database is removed: {out}");
    // A database of this name is not the command's to remove.
    let name = "nvme:drive/braid-paper-nvme";
    fixture.run(
        &[
            "bench",
            "u1",
            "--dir",
            name,
            "--seconds",
            "0.01",
            "--records",
            "100",
        ],
        0,
    );
    let (_, err) = measure(&["drive"], 1);
    assert!(err.contains("braid nvme remove"), "{err}");
    let (_, err) = measure(&["no drive"], 1);
    assert!(err.contains("cannot open a drive"), "{err}");
}

/// A loop device over the fixture's file.
struct Loop(PathBuf);

impl Loop {
    /// `None` where loop devices are not permitted.
    fn new(fixture: &Fixture) -> Option<Self> {
        let file = fixture.file();
        let device = tool("losetup", &["--show", "-f", "-P", file.to_str().unwrap()])?;
        Some(Self(device.trim().into()))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// The drive is refused with a reason, and does not change.
    #[track_caller]
    fn expect_refused(&self, fixture: &Fixture, options: &[&str], reason: &str) {
        let before = fs::read(fixture.file()).unwrap();
        let args = [&["nvme", "format", self.path()], options].concat();
        let (_, err) = fixture.run(&args, 1);
        assert!(err.contains(reason), "{reason}: {err}");
        assert!(fs::read(fixture.file()).unwrap() == before, "{reason}");
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tool("losetup", &["-d", self.path()]);
    }
}

/// A mounted file system.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(fixture: &Fixture, device: &str) -> Option<Self> {
        let at = tempfile::tempdir_in(fixture.directory.path()).unwrap();
        tool("mount", &[device, at.path().to_str().unwrap()])?;
        Some(Self(at))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        tool("umount", &[self.0.path().to_str().unwrap()]);
    }
}

/// Runs a program of the system; prints why if it does not work.
fn tool(program: &str, args: &[&str]) -> Option<String> {
    // Not every user has the administrator's programs in the path.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let run = std::process::Command::new("env")
        .arg(format!("PATH={path}"))
        .arg(program)
        .args(args)
        .output();
    match run {
        Ok(output) if output.status.success() => Some(stdout(&output)),
        Ok(output) => {
            println!("SKIPPED: {program} {args:?}: {}", stderr(&output));
            None
        }
        Err(error) => {
            println!("SKIPPED: {program}: {error}");
            None
        }
    }
}

#[test]
fn a_drive_with_a_file_system_or_swap_space_is_refused() {
    let fixture = Fixture::new();
    let Some(drive) = Loop::new(&fixture) else {
        return;
    };
    let made = tool("mkfs.ext4", &["-q", "-F", drive.path()]);
    if made.is_some() {
        drive.expect_refused(&fixture, &[], "an ext2, ext3 or ext4 file system");
        if let Some(mounted) = Mount::new(&fixture, drive.path()) {
            tool("sync", &[]);
            let (_, err) = fixture.run(&["nvme", "format", drive.path(), "--force"], 1);
            assert!(err.contains("it is mounted at "), "{err}");
            assert!(err.contains("--force does not do"), "{err}");
            assert!(mounted.0.path().join("lost+found").exists());
        }
    }
    if tool("mkswap", &["-f", drive.path()]).is_some() {
        drive.expect_refused(&fixture, &[], "swap space");
    }
    fixture.run(&["nvme", "format", drive.path(), "--force"], 0);
    // Another volume.
    drive.expect_refused(&fixture, &[], "a Braid volume");
}

/// The partitions are devices of their own.
#[test]
fn a_drive_with_partitions_is_refused() {
    let fixture = Fixture::new();
    // One partition of type Linux, from sector 2,048 on.
    let mut table = vec![0; 512];
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    table[450] = 0x83;
    table[454..458].copy_from_slice(&2048u32.to_le_bytes());
    table[458..462].copy_from_slice(&65_536u32.to_le_bytes());
    fixture.write(0, &table);
    let Some(drive) = Loop::new(&fixture) else {
        return;
    };
    drive.expect_refused(&fixture, &[], "an MBR partition table");
    let part = format!("{}p1", drive.path());
    let made = tool("mkfs.ext4", &["-q", "-F", &part]);
    if made.is_some()
        && let Some(mounted) = Mount::new(&fixture, &part)
    {
        for device in [drive.path(), &part] {
            let (_, err) = fixture.run(&["nvme", "format", device, "--force"], 1);
            assert!(err.contains("it is mounted at "), "{device}: {err}");
        }
        assert!(mounted.0.path().join("lost+found").exists());
    }
    drive.expect_refused(&fixture, &[], "an MBR partition table");
}

/// Not even by force: the databases of the other process would be lost under it.
#[test]
fn a_drive_that_another_process_has_open_is_refused() {
    let fixture = Fixture::new();
    let Some(drive) = Loop::new(&fixture) else {
        return;
    };
    fixture.run(&["nvme", "format", drive.path()], 0);
    let held = braid_nvme::DriveName::Path(drive.0.clone()).open().unwrap();
    drive.expect_refused(
        &fixture,
        &["--force"],
        "another process or handle has it open",
    );
    drop(held);
    // A child that another test starts has the drive open, too, until it runs its own program.
    let begun = Instant::now();
    let check = || braid_in(fixture.directory.path(), &["nvme", "fsck", drive.path()]);
    while check().status.code() != Some(0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is not free");
    }
}
