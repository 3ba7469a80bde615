//! Writes the corpus of every target to a directory, for libFuzzer: `corpus fuzz/corpus`.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let to = std::env::args().nth(1).map(PathBuf::from);
    let to = to.unwrap_or_else(|| PathBuf::from("fuzz/corpus"));
    for target in braid_fuzz::TARGETS {
        let directory = to.join(target.name);
        std::fs::create_dir_all(&directory)?;
        for (i, input) in (target.corpus)().into_iter().enumerate() {
            std::fs::write(directory.join(format!("{i:04}")), input)?;
        }
    }
    Ok(())
}
