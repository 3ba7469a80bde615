use std::sync::Arc;

use braid_nvwal::{LogError, Reader, WriterOptions};
use braid_pmem::Survivors;

use crate::model::{START, create, from_image, images, images_of_reader, open, page_of, reader};

#[test]
fn a_reader_stays_at_its_mark_until_it_is_refreshed() {
    let (memory, _, mut writer) = create(&WriterOptions::default());
    let mut reader = reader(&memory);
    assert!(reader.pages().is_empty());
    writer.append(1, &page_of(1)).unwrap();
    reader.refresh().unwrap();
    assert!(reader.pages().is_empty(), "the transaction is open");
    let first = writer.commit(7).unwrap();
    let frame = writer.append(1, &page_of(2)).unwrap();
    let second = writer.commit(8).unwrap();
    assert!(reader.pages().is_empty());
    assert_eq!(reader.refresh().unwrap(), second);
    assert!(first < second);
    assert_eq!((reader.tag(), reader.frame(1)), (8, Some(frame)));
    writer.append(1, &page_of(3)).unwrap();
    writer.commit(9).unwrap();
    assert_eq!(images_of_reader(&reader).unwrap(), [(1, page_of(2))].into());
    // Earlier frames can be read, later ones not.
    let mut image = page_of(0);
    reader.read_frame(0, &mut image).unwrap();
    assert_eq!(image, page_of(1));
    assert!(reader.read_frame(second.position, &mut image).is_err());
}

#[test]
fn a_reader_notices_that_its_blocks_are_used_again() {
    let (memory, _, mut writer) = create(&WriterOptions::default());
    writer.append(1, &page_of(1)).unwrap();
    writer.commit(1).unwrap();
    let mut reader = reader(&memory);
    let mark = writer.checkpoint().unwrap().mark();
    writer.new_generation(mark).unwrap();
    writer.append(1, &page_of(2)).unwrap();
    writer.commit(2).unwrap();
    let error = reader.read(1, &mut page_of(0)).unwrap_err();
    assert!(matches!(error, LogError::GenerationChanged), "{error}");
    assert!(reader.read(5, &mut page_of(0)).is_err(), "not in the log");
    assert_eq!(reader.refresh().unwrap(), writer.mark());
    assert_eq!(images_of_reader(&reader).unwrap(), [(1, page_of(2))].into());
}

#[test]
fn a_pinned_reader_keeps_its_generation_and_holds_checkpoints() {
    let (memory, _, mut writer) = create(&WriterOptions::default());
    writer.append(1, &page_of(1)).unwrap();
    let first = writer.commit(1).unwrap();
    let mut reader = reader(&memory);
    assert_eq!(reader.pin().unwrap(), first);
    writer.append(1, &page_of(2)).unwrap();
    writer.append(2, &page_of(2)).unwrap();
    let second = writer.commit(2).unwrap();
    // The database gets nothing that the reader must not see.
    let (mark, pages) = images(&mut writer).unwrap();
    assert_eq!((mark, pages), (first, [(1, page_of(1))].into()));
    let error = writer.new_generation(second).unwrap_err();
    let LogError::ReadersActive { processes } = error else {
        panic!("{error}");
    };
    assert_eq!(processes, [std::process::id()]);
    assert_eq!(writer.readers(), processes);
    assert_eq!(reader.refresh().unwrap(), first, "it stays where it is");
    assert_eq!(images_of_reader(&reader).unwrap(), [(1, page_of(1))].into());
    // The log works on.
    writer.append(3, &page_of(3)).unwrap();
    let third = writer.commit(3).unwrap();
    reader.unpin();
    assert_eq!(reader.refresh().unwrap(), third);
    reader.pin().unwrap();
    drop(reader);
    let (mark, pages) = images(&mut writer).unwrap();
    assert_eq!((mark, pages.len()), (third, 3));
    writer.new_generation(mark).unwrap();
}

#[test]
fn the_readers_of_an_ended_process_are_released() {
    let (memory, _, mut writer) = create(&WriterOptions::default());
    writer.append(1, &page_of(1)).unwrap();
    let mark = writer.commit(1).unwrap();
    let mut readers = Vec::new();
    let error = loop {
        let mut reader = reader(&memory);
        match reader.pin() {
            Ok(_) => readers.push(reader),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LogError::TooManyReaders(64)), "{error}");
    // They end without a word.
    readers.into_iter().for_each(std::mem::forget);
    let memory = from_image(&memory.crash(Survivors::Everything));
    let (_region, mut writer, _) = open(&memory, &WriterOptions::default());
    assert_eq!(writer.mark(), mark);
    assert!(writer.new_generation(mark).is_err());
    assert_eq!(writer.release_readers(|_| false), 0);
    let ended = writer.release_readers(|process| process == std::process::id());
    assert_eq!(ended, 64);
    writer.new_generation(mark).unwrap();
}

/// Threads read while the writer commits and begins generations: each reader sees the pages of one
/// transaction, which all have the same byte.
#[test]
fn readers_see_whole_transactions_while_the_writer_works() {
    let (memory, region, mut writer) = create(&WriterOptions::default());
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let (memory, is_done) = (&memory, &is_done);
                scope.spawn(move || {
                    let mapping = Arc::new(braid_pmem::Mapping::simulated(memory));
                    let mut reader = Reader::open(mapping, START).unwrap();
                    let mut seen = 0;
                    let mut last = None;
                    while !is_done.load(order) {
                        // Each mark only once: a full log waits for the reader.
                        let is_new = last != Some(reader.mark());
                        let pinned = thread == 1 && is_new && reader.pin().is_ok();
                        if pinned {
                            last = Some(reader.mark());
                        }
                        if !pinned && reader.refresh().is_err() {
                            continue;
                        }
                        match images_of_reader(&reader) {
                            Ok(pages) => {
                                seen += 1;
                                let byte = (reader.tag() % 251) as u8;
                                for page in pages.values() {
                                    assert_eq!(*page, page_of(byte));
                                }
                                assert!(pages.is_empty() || pages.len() == 4);
                            }
                            Err(LogError::GenerationChanged) => assert!(!pinned),
                            Err(error) => panic!("{error}"),
                        }
                        reader.unpin();
                    }
                    seen
                })
            })
            .collect();
        let mut number = 1;
        while number < 400 {
            let byte = (number % 251) as u8;
            let commit = |writer: &mut braid_nvwal::Writer| {
                for page in 0..4 {
                    writer.append(page, &page_of(byte))?;
                }
                writer.commit(number)
            };
            match commit(&mut writer) {
                Ok(_) => number += 1,
                Err(LogError::Full { .. }) => {
                    writer.roll_back();
                    match writer.new_generation(writer.mark()) {
                        Ok(()) | Err(LogError::ReadersActive { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        is_done.store(true, order);
        for thread in threads {
            assert!(thread.join().unwrap() > 0);
        }
    });
    assert!(writer.stats().generations > 2);
    drop(region);
}
