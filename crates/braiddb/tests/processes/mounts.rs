//! Small file systems, each for one test.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system, unmounted on drop.
pub(crate) struct Mount {
    pub(crate) path: PathBuf,
}

/// Runs a tool; returns why that failed.
fn run(tool: &str, args: &[&str]) -> Option<()> {
    match Command::new(tool).args(args).output() {
        Ok(output) if output.status.success() => Some(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            eprintln!("left out: {tool} {args:?}: {}", text.trim());
            None
        }
        Err(error) => {
            eprintln!("left out: {tool}: {error}");
            None
        }
    }
}

impl Mount {
    fn new(path: &Path, args: &[&str]) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let args = [args, &[path.to_str()?]].concat();
        run("mount", &args)?;
        Some(Self {
            path: path.to_owned(),
        })
    }

    /// Mounts memory. Returns `None`, and prints a note, if this process may not mount.
    pub(crate) fn tmpfs(path: &Path, kib: u64) -> Option<Self> {
        Self::new(
            path,
            &["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"],
        )
    }

    /// Creates a file system of this type in a new, sparse file, which grows as blocks are written.
    pub(crate) fn image(kind: &str, image: &Path, path: &Path, kib: u64) -> Option<Self> {
        let file = fs::File::create_new(image).unwrap();
        file.set_len(kib << 10).unwrap();
        let image = image.to_str()?;
        let options: &[&str] = match kind {
            "ext4" => &["-q", "-b", "4096"],
            _ => &["-q"],
        };
        let args = [options, &[image]].concat();
        run(&format!("mkfs.{kind}"), &args)?;
        Self::again(image, path)
    }

    /// Mounts an image that was mounted before.
    pub(crate) fn again(image: &str, path: &Path) -> Option<Self> {
        Self::new(path, &["-o", "loop", image])
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // If unmounting fails, removing the parent directory fails as well, which fails the test.
        // Lazily, because a failed test may have files open.
        let _ = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}

/// A file that takes space until it is removed.
pub(crate) struct Ballast(PathBuf);

impl Ballast {
    pub(crate) fn new(dir: &Path, kib: usize) -> Self {
        let path = dir.join("ballast");
        fs::write(&path, vec![1; kib << 10]).unwrap();
        Self(path)
    }

    /// Takes all remaining space.
    pub(crate) fn rest(dir: &Path) -> Self {
        let path = dir.join("rest");
        let mut file = fs::File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        Self(path)
    }

    pub(crate) fn remove(self) {
        fs::remove_file(self.0).unwrap();
    }
}
