//! Parsers of single structures.

use braid_io::MemoryDevice;
use braid_log::{CheckpointPosition, Log, LogOptions, SeqNo};

use super::Target;
use crate::edit::Image;

/// Runs a decoder; the first byte says whether the checksum is repaired.
fn with_seal(bytes: &[u8], seal: impl Fn(&mut [u8]), run: impl Fn(&[u8])) {
    let Some((mode, bytes)) = bytes.split_first() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if mode & 1 != 0 {
        seal(&mut bytes);
    }
    run(&bytes);
}

/// Returns the first segment of a log with a few log records.
/// Identity of the log of the corpus.
const LOG: u128 = 7;

fn segment() -> Vec<u8> {
    let device = std::sync::Arc::new(MemoryDevice::new());
    let options = LogOptions {
        strands: 2,
        slot_bytes: 8192,
        segment_bytes: 64 << 10,
        flush_mode: braid_log::FlushMode::Callers,
        ..LogOptions::default()
    };
    let log = Log::create_as(device.clone(), options, SeqNo::NONE, LOG).expect("a log in memory");
    for i in 0..5u8 {
        let ticket = log.append(&[&[i; 40]]).expect("memory takes it");
        ticket.wait().expect("memory takes it");
    }
    Image::of(&*device, 4096).files.swap_remove(0).1
}

pub(super) const SEGMENT_HEADER: Target = Target {
    name: "segment_header",
    run: |bytes| {
        // It is in the first block, the rest of which is zero.
        let pad = |bytes: &[u8]| {
            let mut block = bytes.to_vec();
            block.resize(4096, 0);
            block
        };
        let read = |bytes: &[u8]| {
            braid_log::fuzzing::is_segment_header(bytes);
        };
        with_seal(
            bytes,
            |_| {},
            |bytes| {
                read(bytes);
                let mut block = pad(bytes);
                braid_log::fuzzing::seal_header(&mut block);
                read(&block);
            },
        );
    },
    corpus: || vec![[&[1], &segment()[..128]].concat()],
    runs: 20_000,
};

pub(super) const CHUNK: Target = Target {
    name: "chunk",
    run: |bytes| {
        with_seal(
            bytes,
            |chunk| {
                // In whole blocks, as on the medium.
                braid_log::fuzzing::seal_chunks(chunk, Some(LOG), &[0], false);
            },
            |chunk| {
                braid_log::fuzzing::records_of_chunk(chunk, Some(LOG));
            },
        );
    },
    corpus: || {
        let segment = segment();
        let chunks = braid_log::fuzzing::chunks(&segment);
        chunks
            .iter()
            .map(|&at| [&[1], &segment[at..at + 4096]].concat())
            .collect()
    },
    runs: 20_000,
};

pub(super) const LOG_RECORDS: Target = Target {
    name: "log_records",
    run: |bytes| {
        braid_log::fuzzing::log_records(bytes);
    },
    corpus: || {
        let segment = segment();
        let at = braid_log::fuzzing::chunks(&segment)[0];
        vec![
            segment[at + 72..at + 72 + 60].to_vec(),
            // An abort record, the first part of two, the second, one with a dependency.
            vec![9, 2, 0],
            vec![10, 2, 3, 2, 1, 1, 11, 0, 2, 1, 1],
            vec![12, 4, 8, 9, 1, 0, 0, 0, 0, 0, 0, 0, 7],
        ]
    },
    runs: 50_000,
};

pub(super) const CHECKPOINT_POSITION: Target = Target {
    name: "checkpoint_position",
    run: |bytes| {
        if let Ok(start) = CheckpointPosition::decode(bytes) {
            assert_eq!(start.encode(), bytes);
        }
    },
    corpus: || {
        let lane = braid_log::LanePosition {
            segment: 1,
            offset: 4096,
            chunk: 3,
            link: 4,
            incarnation: 5,
        };
        let start = CheckpointPosition {
            seqno: braid_log::SeqNo::new(7),
            flush: braid_log::FlushNo::NONE,
            lanes: vec![lane; 2],
        };
        vec![start.encode()]
    },
    runs: 20_000,
};

pub(super) const REDO: Target = Target {
    name: "redo",
    run: |bytes| {
        braid::fuzzing::redo_records(bytes);
    },
    corpus: || {
        let put = braid::fuzzing::redo_record(2, b"key", Some(b"value"));
        let remove = braid::fuzzing::redo_record(1 << 30, b"key", None);
        vec![[&put[..], &remove].concat(), put, remove]
    },
    runs: 50_000,
};

pub(super) const META: Target = Target {
    name: "meta",
    run: |bytes| {
        braid::fuzzing::is_meta(bytes);
    },
    corpus: || {
        let mut meta = b"BRAIDm\x02\x00\x02\x04\x00\x01\x00".to_vec();
        meta.extend([0; 8 + 8]);
        meta.extend([1, 0, 0, 0]);
        meta.extend([1; 32]);
        vec![meta]
    },
    runs: 20_000,
};

pub(super) const ROOT: Target = Target {
    name: "root",
    run: |bytes| {
        braid_store::fuzzing::is_root(bytes);
    },
    corpus: || {
        // Next page; one map leaf; two trees; five bytes of the caller.
        let words = [30u64, 1, 9, 2, 1, 4, 7, 5, 5];
        let mut root: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        root.extend(b"bytes");
        vec![root]
    },
    runs: 20_000,
};

pub(super) const TABLESPACES: Target = Target {
    name: "tablespaces",
    run: |bytes| {
        let Some((kind, bytes)) = bytes.split_first() else {
            return;
        };
        match kind % 4 {
            0 => braid::fuzzing::is_space_list(bytes),
            1 => braid::fuzzing::is_space_meta(bytes),
            kind => braid::fuzzing::is_space_file(bytes, kind == 2),
        };
    },
    corpus: || {
        let (list, note) = space_files();
        let mut meta = b"BRAIDt\x01\x00".to_vec();
        meta.extend([7; 16 + 1 + 8 + 8 + 8]);
        let mut inputs = vec![[&[0], &list[16..]].concat(), [&[1], &meta[..]].concat()];
        for (file, kind) in [(&list, 2), (&list, 3), (&note, 2), (&note, 3)] {
            inputs.push([&[kind], &file[..]].concat());
        }
        // Every input is accepted, so its mutants are almost valid.
        assert!(braid::fuzzing::is_space_list(&inputs[0][1..]));
        assert!(braid::fuzzing::is_space_meta(&inputs[1][1..]));
        for input in &inputs[2..] {
            assert!(braid::fuzzing::is_space_file(&input[1..], false));
        }
        inputs
    },
    runs: 20_000,
};

/// Returns the list of the tablespaces of a database, and the note of one.
fn space_files() -> (Vec<u8>, Vec<u8>) {
    use braid::tablespace::TablespaceOptions;
    let devices: [std::sync::Arc<MemoryDevice>; 4] = Default::default();
    let builder = braid::Database::builder().pool_bytes(1 << 20);
    let builder = builder.background_threads(false);
    let db = builder
        .open_on(devices[0].clone())
        .expect("memory takes it");
    for (name, device) in [("one", &devices[1]), ("two", &devices[2])] {
        let options = TablespaceOptions::on_device(device.clone()).pool_bytes(1 << 20);
        let options = match name {
            "two" => options.log_on(devices[3].clone()),
            _ => options,
        };
        db.create_tablespace(name, options)
            .expect("memory takes it");
    }
    let file = |device: &MemoryDevice, name: &str| {
        let files = Image::of(device, 4096).files.into_iter();
        let mut found = files.filter(|file| file.0 == name);
        found.next().expect("the database wrote it").1
    };
    (
        file(&devices[0], "TABLESPACES"),
        file(&devices[1], "TABLESPACE-OWNER"),
    )
}
