use super::*;

fn block(byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::new(2 * BLOCK);
    buf.fill(byte);
    buf
}

fn bytes_of(device: &SimDevice, name: &str) -> Option<Vec<u8>> {
    let file = device.open(name, OpenMode::Existing).ok()?;
    let mut buf = AlignedBuf::new((file.len().unwrap() as usize).max(1));
    let len = file.len().unwrap() as usize;
    file.read_at(&mut buf[..len], 0).unwrap();
    Some(buf[..len].to_vec())
}

#[test]
fn synced_bytes_survive_and_others_sometimes_do() {
    let mut outcomes = std::collections::BTreeMap::<&str, u32>::new();
    let seeds = if cfg!(miri) { 6 } else { 200 };
    for seed in 0..seeds {
        let device = SimDevice::new(seed);
        let file = device.open("f", OpenMode::CreateNew).unwrap();
        file.write_at(&[&block(1)], 0).unwrap();
        file.sync().unwrap();
        device.sync_directory().unwrap();
        file.write_durable_at(&[&block(2)[..BLOCK]], 0).unwrap();
        file.write_at(&[&block(3)[..BLOCK]], BLOCK as u64).unwrap();
        let bytes = bytes_of(&device.after_crash(), "f").expect("a synced name survives");
        assert!(
            bytes[..BLOCK].iter().all(|b| *b == 2),
            "durable, seed {seed}"
        );
        let new = bytes[BLOCK..].chunks(SECTOR).filter(|s| s[0] == 3).count();
        assert!(
            bytes[BLOCK..].iter().all(|b| matches!(b, 1 | 3)),
            "seed {seed}"
        );
        let outcome = match new {
            0 => "lost",
            n if n == BLOCK / SECTOR => "kept",
            _ => "torn",
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    assert!(u64::from(outcomes["torn"]) > seeds / 2, "{outcomes:?}");
}

#[test]
fn the_same_seed_does_the_same() {
    let run = |seed| {
        let device = SimDevice::new(seed);
        let file = device.open("f", OpenMode::CreateNew).unwrap();
        device.sync_directory().unwrap();
        device.crash_after(3);
        for byte in 0..9 {
            let _ = file.write_at(&[&block(byte)], 0);
        }
        assert!(device.has_crashed());
        bytes_of(&device.after_crash(), "f")
    };
    assert_eq!(run(5), run(5));
    assert!((0..50).any(|seed| run(seed) != run(5)));
}

#[test]
fn faults_come_when_they_were_asked_for() {
    let device = SimDevice::new(1);
    let file = device.open("f", OpenMode::CreateNew).unwrap();
    device.fail_write_after(2);
    file.write_at(&[&block(1)], 0).unwrap();
    assert!(file.write_at(&[&block(1)], 0).is_err());
    file.write_at(&[&block(1)], 0).unwrap();
    device.fail_sync_after(1);
    assert!(file.sync().is_err());
    file.sync().unwrap();
    device.set_capacity(Some(3 * BLOCK as u64));
    assert_eq!(device.faults(), 2);
    let full = file.write_at(&[&block(1)], 2 * BLOCK as u64).unwrap_err();
    assert_eq!(device.faults(), 3);
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    file.write_at(&[&block(1)], 0).unwrap();
    device.fail_read_after(0);
    assert!(file.read_at(&mut block(0), 0).is_err());
    file.read_at(&mut block(0), 0).unwrap();
    device.break_after(1);
    assert!(file.sync().is_err() && file.sync().is_err());
    device.repair();
    file.sync().unwrap();
    device.crash_after(1);
    assert!(file.sync().is_err() && file.read_at(&mut block(0), 0).is_err());
}

#[test]
fn a_killed_process_leaves_its_writes_and_a_lying_cache_does_not() {
    let lost = (0..100).filter(|&seed| {
        let device = SimDevice::new(seed);
        let file = device.open("f", OpenMode::CreateNew).unwrap();
        if seed % 2 == 0 {
            file.write_at(&[&block(1)], 0).unwrap();
            assert_eq!(bytes_of(&device.after_kill(), "f"), Some(block(1).to_vec()));
            return false;
        }
        device.sync_directory().unwrap();
        device.lie();
        file.write_durable_at(&[&block(1)], 0).unwrap();
        file.sync().unwrap();
        bytes_of(&device.after_crash(), "f") != Some(block(1).to_vec())
    });
    assert!(lost.count() > 25);
}

/// The next process sees a killed process's writes, which are no more durable than before.
#[test]
fn writes_of_a_killed_process_last_once_synced() {
    let bytes = block(2).to_vec();
    let mut lost = [0; 4];
    for seed in 0..if cfg!(miri) { 8 } else { 100 } {
        let device = SimDevice::new(seed);
        let file = device.open("f", OpenMode::CreateNew).unwrap();
        file.write_at(&[&block(1)], 0).unwrap();
        file.sync().unwrap();
        device.sync_directory().unwrap();
        file.write_at(&[&block(2)], 0).unwrap();
        device.rename("f", "g").unwrap();
        drop(device.open("h", OpenMode::CreateNew).unwrap());
        // Killed twice: the third process also sees the first one's data.
        let killed = device.after_kill().after_kill();
        assert_eq!(bytes_of(&killed, "g").as_ref(), Some(&bytes), "seed {seed}");
        let (syncs_names, syncs_file) = (seed % 2 == 1, seed % 4 >= 2);
        if syncs_names {
            killed.sync_directory().unwrap();
        }
        if syncs_file {
            let file = killed.open("g", OpenMode::Existing).unwrap();
            file.sync().unwrap();
        }
        let after = killed.after_crash();
        let names: Vec<String> = after.list().unwrap().into_iter().map(|e| e.name).collect();
        let keeps_names = names == ["g", "h"];
        assert!(keeps_names || (names == ["f"] && !syncs_names), "{names:?}");
        let name = if keeps_names { "g" } else { "f" };
        let keeps_bytes = bytes_of(&after, name).as_ref() == Some(&bytes);
        assert!(keeps_bytes || !syncs_file, "seed {seed}");
        lost[usize::from(syncs_names) + 2 * usize::from(syncs_file)] +=
            u32::from(!keeps_names) + u32::from(!keeps_bytes);
    }
    assert!(lost[..3].iter().all(|&lost| lost > 0), "{lost:?}");
    assert_eq!(lost[3], 0);
}

#[test]
fn truncated_bytes_may_reappear() {
    let seen: std::collections::BTreeSet<Vec<u8>> = (0..100)
        .filter_map(|seed| {
            let device = SimDevice::new(seed);
            let file = device.open("f", OpenMode::CreateNew).unwrap();
            device.sync_directory().unwrap();
            file.write_at(&[&block(1)], 0).unwrap();
            file.sync().unwrap();
            file.set_len(BLOCK as u64).unwrap();
            file.set_len(2 * BLOCK as u64).unwrap();
            let bytes = bytes_of(&device.after_crash(), "f").unwrap();
            assert!(bytes[..BLOCK].iter().all(|b| *b == 1));
            bytes.get(BLOCK..).map(|b| vec![b[0]])
        })
        .collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
}

#[test]
fn sectors_fail() {
    let device = SimDevice::new(2);
    device.remember_stale();
    let file = device.open("f", OpenMode::CreateNew).unwrap();
    file.write_at(&[&block(1)], 0).unwrap();
    file.write_at(&[&block(2)[..BLOCK]], 0).unwrap();
    assert_eq!(
        device.media_faults(MediaFaults::LostSector, |name| name != "f"),
        None
    );
    let (name, at) = device
        .media_faults(MediaFaults::StaleSector, |_| true)
        .unwrap();
    let bytes = bytes_of(&device, &name).unwrap();
    assert!(
        matches!(bytes[at], 0 | 1) && bytes.iter().filter(|b| **b == 2).count() == BLOCK - SECTOR
            || at >= BLOCK
    );
    let (_, at) = device
        .media_faults(MediaFaults::LostSector, |_| true)
        .unwrap();
    assert_eq!(bytes_of(&device, "f").unwrap()[at], 0);
    let before = bytes_of(&device, "f").unwrap();
    let (_, at) = device
        .media_faults(MediaFaults::FlippedBit, |_| true)
        .unwrap();
    let after = bytes_of(&device, "f").unwrap();
    let differ: Vec<usize> = (0..before.len())
        .filter(|&i| before[i] != after[i])
        .collect();
    assert!(differ.len() == 1 && (at..at + SECTOR).contains(&differ[0]));
    let device = SimDevice::new(2);
    device.remember_stale();
    let file = device.open("f", OpenMode::CreateNew).unwrap();
    file.write_at(&[&block(1)], 0).unwrap();
    file.write_at(&[&block(2)], 0).unwrap();
    file.sync().unwrap();
    let image = device.after_crash();
    assert_eq!(
        image.media_faults(MediaFaults::StalePage, |_| true),
        Some(("f".to_owned(), 0))
    );
    assert!(
        bytes_of(&image, "f").unwrap()[..PAGE]
            .iter()
            .all(|b| *b == 1)
    );
}

/// Runs a history on a device with a durable file of nines, under a simulation.
fn simulated<T: Send + 'static>(
    seed: u64,
    history: impl FnOnce(&SimDevice, &dyn File) -> T + Send + 'static,
) -> T {
    let options = braid_rt::simulation::Options {
        seed,
        steps_max: 10_000,
        stalls: 0,
    };
    let (outcome, _) = braid_rt::simulation::run(&options, move || {
        let device = SimDevice::new(seed);
        let file = device.open("f", OpenMode::CreateNew).unwrap();
        file.write_at(&[&block(9)], 0).unwrap();
        file.sync().unwrap();
        device.sync_directory().unwrap();
        history(&device, &*file)
    });
    outcome.unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn under_a_simulation_writes_end_in_any_order_and_syncs_cover_earlier_ones() {
    use braid_rt::thread;
    let outcomes: std::collections::BTreeSet<Vec<u8>> = (0..200)
        .map(|seed| {
            let bytes = simulated(seed, |device, file| {
                let done = thread::scatter(3, |i| {
                    if i == 2 {
                        return file.sync().is_ok();
                    }
                    let at = i as u64 * BLOCK as u64;
                    file.write_at(&[&block(i as u8)[..BLOCK]], at).is_ok()
                });
                assert_eq!(done, [true; 3]);
                bytes_of(&device.after_crash(), "f").unwrap()
            });
            [bytes[0], bytes[BLOCK]].to_vec()
        })
        .collect();
    assert!(outcomes.len() == 4, "{outcomes:?}");
}

/// Whichever of two writes ends first: the medium keeps what it shows, and a durable write is not lost
/// to a volatile one that ended before.
#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn under_a_simulation_writes_in_flight_to_a_block_land_in_either_order() {
    use braid_rt::thread;
    let mut outcomes = std::collections::BTreeMap::<_, u32>::new();
    for seed in 0..400 {
        // Bit by bit: which of the two is durable.
        let durable = [seed & 1 != 0, seed & 2 != 0];
        let (last, shown, kept) = simulated(seed, move |device, file| {
            let ended = Mutex::new(Vec::new());
            thread::scatter(2, |i| {
                let bytes = block(i as u8);
                let bytes = [&bytes[..BLOCK]];
                let write = if durable[i] {
                    file.write_durable_at(&bytes, 0)
                } else {
                    file.write_at(&bytes, 0)
                };
                write.unwrap();
                ended.lock().push(i);
            });
            if !durable[0] && !durable[1] {
                file.sync().unwrap();
            }
            let shown = bytes_of(device, "f").unwrap()[0];
            let kept = bytes_of(&device.after_crash(), "f").unwrap()[0];
            let last = ended.lock()[1];
            (last as u8, shown, kept)
        });
        assert!(shown < 2, "seed {seed}");
        if durable[0] == durable[1] {
            assert_eq!(kept, shown, "seed {seed}");
        } else {
            let keeps = u8::from(durable[1]);
            assert!(kept == keeps || kept == shown, "seed {seed}");
        }
        *outcomes.entry((durable, last, shown)).or_default() += 1;
    }
    for durable in [[false, false], [true, true]] {
        for (last, shown) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let count = outcomes.get(&(durable, last, shown));
            assert!(count.is_some(), "{durable:?} {last} {shown}: {outcomes:?}");
        }
    }
}

/// Persistent memory: a crash tears a write into words, and a durable write is whole.
#[test]
fn cache_lines_are_torn_into_words() {
    let mut torn = 0;
    let seeds = if cfg!(miri) { 6 } else { 100 };
    for seed in 0..seeds {
        let device = SimDevice::new(seed);
        device.set_block_size(LINE);
        let file = device.open("f", OpenMode::CreateNew).unwrap();
        file.write_at(&[&block(1)], 0).unwrap();
        file.sync().unwrap();
        device.sync_directory().unwrap();
        // Between sectors, and from one block into the next.
        let at = BLOCK - LINE;
        let durable = &block(2)[..2 * LINE];
        file.write_durable_at(&[durable, durable], at as u64)
            .unwrap();
        assert!(file.write_durable_at(&[&durable[..WORD]], 0).is_err());
        device.crash_after(1);
        file.write_durable_at(&[&block(3)[..LINE]], LINE as u64)
            .unwrap_err();
        let left = device.after_crash();
        left.set_block_size(LINE);
        let bytes = bytes_of(&left, "f").expect("a synced name survives");
        let line = &bytes[LINE..2 * LINE];
        let words = line.chunks(WORD);
        let new = words.clone().filter(|word| **word == [3; WORD]).count();
        let old = words.filter(|word| **word == [1; WORD]).count();
        assert_eq!(new + old, LINE / WORD, "seed {seed}");
        torn += u32::from(new > 0 && old > 0);
        let mut others = bytes.clone();
        others[LINE..2 * LINE].fill(1);
        let mut expected = block(1).to_vec();
        expected[at..at + 4 * LINE].fill(2);
        assert!(others == expected, "seed {seed}");
    }
    assert!(u64::from(torn) > seeds / 2, "{torn}");
}
