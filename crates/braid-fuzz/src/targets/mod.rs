//! The targets.

mod backup;
mod database;
mod decoders;
mod log;
mod operations;
mod salvage;
mod server;
mod store;

/// A function of bytes that must not panic, hang, or allocate much memory.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and of its wrapper in `fuzz/`.
    pub name: &'static str,
    /// The function.
    pub run: fn(&[u8]),
    /// Initial inputs.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Number of inputs that an ordinary test run tries.
    pub runs: u32,
}

/// All targets.
pub const TARGETS: [Target; 21] = [
    decoders::SEGMENT_HEADER,
    decoders::CHUNK,
    decoders::LOG_RECORDS,
    decoders::CHECKPOINT_POSITION,
    decoders::REDO,
    decoders::META,
    decoders::ROOT,
    decoders::TABLESPACES,
    log::LOG,
    store::NODE,
    store::STORE,
    database::DATABASE,
    salvage::SALVAGE,
    backup::BACKUP,
    operations::OPERATIONS,
    server::SERVER_REQUESTS,
    server::SERVER_SESSION,
    server::SERVER_ARGUMENTS,
    server::SERVER_RESTORE,
    server::SERVER_CONFIG,
    server::SERVER_ACL,
];

/// Scripts at the start of each image's corpus: each kind of edit, with and without repaired
/// checksums.
fn scripts() -> Vec<Vec<u8>> {
    let mut all = vec![vec![0]];
    for mode in 0..4u8 {
        for kind in 0..16u8 {
            for width in 0..4 {
                all.push(vec![
                    mode,
                    kind << 2 | width,
                    3,
                    0,
                    16,
                    1,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                ]);
            }
        }
    }
    // Each file truncated in the middle, and removed.
    for block in 0..=51 {
        all.push(vec![0, 63, 5 * block, 0, 100]);
        all.push(vec![0, 63 | 0x80, 5 * block, 0, 0, 0]);
    }
    all
}
