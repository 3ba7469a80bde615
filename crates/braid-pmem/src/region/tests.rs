use std::collections::BTreeMap;

use super::*;
use crate::{Image, SimulatedMemory, SimulatedOptions, Survivors};

const LEN: u64 = 1 << 18;

fn memory() -> SimulatedMemory {
    SimulatedMemory::new(LEN, SimulatedOptions::default().capacity(4 * LEN))
}

fn create(memory: &SimulatedMemory) -> Region {
    Region::create_in(Mapping::simulated(memory), &RegionOptions::default()).unwrap()
}

fn open(image: &Image) -> Result<Region, RegionError> {
    open_with(image, &RegionOptions::default())
}

fn open_with(image: &Image, options: &RegionOptions) -> Result<Region, RegionError> {
    let memory = SimulatedMemory::from_image(image, SimulatedOptions::default().capacity(4 * LEN));
    Region::open_in(Mapping::simulated(&memory), options)
}

#[test]
fn a_shared_region_grows_by_each_of_two_openings() {
    let memory = memory();
    create(&memory).close().unwrap();
    let shared = RegionOptions::default().shared(true);
    let open = || Region::open_in(Mapping::simulated(&memory), &shared).unwrap();
    let (first, second) = (open(), open());
    first.grow(2 * LEN).unwrap();
    second.grow(2 * LEN).unwrap();
    assert_eq!(second.len(), 2 * LEN, "the other one's header");
    second.grow(3 * LEN).unwrap();
    drop((first, second));
    let image = memory.crash(Survivors::Nothing);
    assert_eq!(open_with(&image, &shared).unwrap().len(), 3 * LEN);
}

#[test]
fn a_region_keeps_its_identity_and_roots() {
    let memory = memory();
    let region = create(&memory);
    assert!(region.was_closed());
    assert_eq!(region.root(3).unwrap(), 0);
    region.set_root(3, 77).unwrap();
    let identity = region.identity();
    assert_ne!(identity, create(&self::memory()).identity());

    let opened = open(&memory.crash(Survivors::Nothing)).unwrap();
    assert_eq!(opened.identity(), identity);
    assert_eq!(opened.root(3).unwrap(), 77);
    assert_eq!(opened.len(), LEN);
    assert!(!opened.was_closed());
    assert_eq!(opened.previous_flush_method(), Some(FlushMethod::Simulated));

    region.close().unwrap();
    let opened = open(&memory.crash(Survivors::Nothing)).unwrap();
    assert!(opened.was_closed());
}

#[test]
fn dropping_a_region_closes_it() {
    let memory = memory();
    drop(create(&memory));
    assert!(
        open(&memory.crash(Survivors::Nothing))
            .unwrap()
            .was_closed()
    );
}

#[test]
fn a_region_that_grows_keeps_its_length() {
    let memory = memory();
    let region = create(&memory);
    region.grow(LEN + 1).unwrap();
    let len = region.len();
    assert_eq!(len, LEN + UNIT);
    region.grow(1).unwrap();
    assert_eq!(region.len(), len);
    let error = region.grow(100 * LEN).unwrap_err();
    let RegionError::Map { source, .. } = error else {
        panic!("{error}")
    };
    assert!(matches!(source, MapError::Capacity { .. }));
    assert_eq!(open(&memory.crash(Survivors::Nothing)).unwrap().len(), len);
}

#[test]
fn foreign_torn_and_unfinished_headers_are_distinguished() {
    let memory = memory();
    drop(create(&memory));
    let image = memory.crash(Survivors::Nothing);

    let mut foreign = image.clone();
    foreign.overwrite(0, b"SQLite format 3\0");
    foreign.overwrite(1 << 16, b"SQLite format 3\0");
    assert!(matches!(open(&foreign), Err(RegionError::Foreign(_))));

    let mut torn = image.clone();
    torn.overwrite(32, &[9; 8]);
    // The other copy is valid, and opening repairs the first.
    open(&torn).unwrap();
    torn.overwrite((1 << 16) + 32, &[9; 8]);
    assert!(matches!(open(&torn), Err(RegionError::TornHeader(_))));

    let empty = self::memory().crash(Survivors::Nothing);
    assert!(matches!(open(&empty), Err(RegionError::Unfinished(_))));

    for seed in 0..100 {
        let mut torn = image.clone();
        torn.tear(0..128, seed);
        open(&torn).unwrap();
        torn.tear(1 << 16..(1 << 16) + 128, seed);
        // The words that became zero may have been zero.
        match open(&torn) {
            Ok(_) | Err(RegionError::TornHeader(_) | RegionError::Unfinished(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_lost_copy_of_the_header_is_replaced_by_the_other() {
    let memory = memory();
    drop(create(&memory));
    let mut image = memory.crash(Survivors::Nothing);
    image.lose(0..64);
    open(&image).unwrap();
    image.lose((1 << 16)..(1 << 16) + 1);
    let error = open(&image).unwrap_err();
    assert!(matches!(error, RegionError::Media { .. }), "{error}");
}

#[test]
fn a_region_of_another_version_is_refused() {
    let memory = memory();
    drop(create(&memory));
    let mut image = memory.crash(Survivors::Nothing);
    for at in [0, 1 << 16] {
        let mut bytes: Vec<u8> = image.bytes()[at..at + 128].to_vec();
        bytes[8] = 9;
        let sum = u64::from(crc32c::crc32c(&bytes[..120]));
        bytes[120..].copy_from_slice(&(sum | !sum << 32).to_le_bytes());
        image.overwrite(at as u64, &bytes);
    }
    let error = open(&image).unwrap_err();
    assert!(
        matches!(
            error,
            RegionError::Version {
                found: 9,
                supported: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn regions_of_other_sizes_are_refused() {
    let memory = memory();
    let region = create(&memory);
    region.grow(2 * LEN).unwrap();
    drop(region);
    let image = memory.crash(Survivors::Nothing);

    let error = open_with(&image, &RegionOptions::default().page_size(8192)).unwrap_err();
    let expected = matches!(
        error,
        RegionError::PageSize {
            found: 4096,
            requested: 8192,
            ..
        }
    );
    assert!(expected, "{error}");

    let error = open(&image.clone().with_line_size(128)).unwrap_err();
    let expected = matches!(
        error,
        RegionError::LineSize {
            found: 64,
            here: 128,
            ..
        }
    );
    assert!(expected, "{error}");

    let options = SimulatedOptions::default().capacity(LEN);
    let short = SimulatedMemory::new(LEN, options.clone());
    let mapping = Mapping::simulated(&short);
    mapping.write(0, &image.bytes()[..LEN as usize]);
    let error = Region::open_in(mapping, &RegionOptions::default()).unwrap_err();
    assert!(
        matches!(error, RegionError::TooSmall { found: LEN, .. }),
        "{error}"
    );

    let tiny = SimulatedMemory::new(4096, options);
    for result in [
        Region::open_in(Mapping::simulated(&tiny), &RegionOptions::default()),
        Region::create_in(Mapping::simulated(&tiny), &RegionOptions::default()),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(error, RegionError::TooSmall { found: 4096, .. }),
            "{error}"
        );
    }
}

#[test]
fn a_check_finds_damage_and_changes_nothing() {
    let memory = memory();
    drop(create(&memory));
    let damage_of = |image: &Image, lost: &[std::ops::Range<u64>]| {
        let options = SimulatedOptions::default().capacity(4 * LEN);
        let memory = SimulatedMemory::from_image(image, options);
        let region = Region::open_in(Mapping::simulated(&memory), &RegionOptions::default());
        let region = region.unwrap();
        for range in lost {
            memory.lose(range.clone());
        }
        let before = memory.operations();
        let mut found = Vec::new();
        region.check(&mut |damage| found.push(damage));
        assert_eq!(memory.operations(), before);
        found
    };
    let image = memory.crash(Survivors::Nothing);
    assert_eq!(damage_of(&image, &[]), []);
    // Pages in a row are one damage, which begins with the first lost line.
    let (first, second, end) = (1 << 17, (1 << 17) + 4096, LEN - 64);
    let lost = [first + 64..first + 128, second..second + 64, end..LEN];
    let expected = [
        RegionDamage::Lost(first + 64..second + 4096),
        RegionDamage::Lost(end..LEN),
    ];
    assert_eq!(damage_of(&image, &lost), expected);

    // Opening for writing would repair the copy: damage it afterwards.
    let memory = SimulatedMemory::from_image(&image, SimulatedOptions::default());
    let mapping = Mapping::simulated(&memory);
    let region = Region::open_in(mapping, &RegionOptions::default()).unwrap();
    region.mapping().write((1 << 16) + 32, &[9; 8]);
    let mut found = Vec::new();
    region.check(&mut |damage| found.push(damage.to_string()));
    let [line] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(line.contains("offset 65536"), "{line}");
}

#[test]
fn any_page_size_is_accepted_unless_one_is_requested() {
    let memory = memory();
    let options = RegionOptions::default().page_size(8192);
    drop(Region::create_in(Mapping::simulated(&memory), &options).unwrap());
    let image = memory.crash(Survivors::Nothing);
    assert_eq!(open(&image).unwrap().page_size(), 8192);
    let error = open_with(&image, &options.page_size(4096)).unwrap_err();
    assert!(matches!(error, RegionError::PageSize { .. }), "{error}");
}

/// A crash at any operation leaves the header before or after the change, and the roots as well.
#[test]
fn a_header_survives_a_crash_at_any_operation() {
    let seeds = if cfg!(miri) { 3 } else { 40 };
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for operation in 0.. {
        let memory = memory();
        memory.power_off_at(operation);
        let created = Region::create_in(Mapping::simulated(&memory), &RegionOptions::default());
        let mut closed = false;
        let mut rooted = false;
        let is_created = created.is_ok();
        if let Ok(region) = created {
            rooted = region.set_root(0, 1).is_ok();
            let _ = region.grow(LEN + UNIT);
            closed = region.close().is_ok();
        }
        for seed in 0..seeds {
            let image = memory.crash(Survivors::Random(seed));
            match open(&image) {
                Ok(region) => {
                    assert!([LEN, LEN + UNIT].contains(&region.len()));
                    assert!(!rooted || region.root(0).unwrap() == 1);
                    assert!(!closed || region.was_closed());
                    let what = match region.was_closed() {
                        true => "closed",
                        false if region.len() > LEN => "grown",
                        false => "created",
                    };
                    *seen.entry(what).or_default() += 1;
                }
                Err(RegionError::Unfinished(_) | RegionError::TornHeader(_)) if !is_created => {
                    *seen.entry("unfinished").or_default() += 1;
                }
                Err(error) => panic!("operation {operation}, seed {seed}: {error}"),
            }
        }
        if closed {
            break;
        }
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[cfg(all(unix, not(miri)))]
mod files {
    use std::fs::{self, OpenOptions};
    use std::process::{Command, Stdio};

    use super::super::*;
    use super::LEN;

    /// A directory that is not in memory, if there is one.
    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let file = tempfile::tempfile_in(directory.path()).unwrap();
        if crate::detect::is_volatile(&file) {
            return tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        }
        directory
    }

    fn options() -> RegionOptions {
        RegionOptions::default().capacity(16 * LEN)
    }

    #[test]
    fn a_region_in_a_file_is_found_again() {
        let directory = directory();
        let path = directory.path().join("region");
        let region = Region::create(&path, LEN + 5, &options()).unwrap();
        assert_eq!(region.len(), LEN + UNIT);
        let start = Region::DATA_START;
        region.mapping().write(start, b"data");
        region.mapping().persist(start..start + 4).unwrap();
        region.grow(3 * LEN).unwrap();
        let identity = region.identity();
        region.close().unwrap();

        let region = Region::open(&path, &options()).unwrap();
        assert_eq!((region.identity(), region.len()), (identity, 3 * LEN));
        assert!(region.was_closed());
        let mut bytes = [0; 4];
        region.mapping().read(start, &mut bytes).unwrap();
        assert_eq!(&bytes, b"data");
    }

    #[test]
    fn an_existing_file_is_never_overwritten() {
        let directory = directory();
        let path = directory.path().join("letter");
        fs::write(&path, "important").unwrap();
        let error = Region::create(&path, LEN, &options()).unwrap_err();
        assert!(matches!(error, RegionError::AlreadyExists(_)), "{error}");
        for result in [
            Region::open(&path, &options()),
            Region::open_read_only(&path, &options()),
            Region::open(directory.path(), &options()),
        ] {
            match result.unwrap_err() {
                RegionError::Foreign(_) | RegionError::System { .. } => {}
                error => panic!("{error}"),
            }
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "important");
        fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        let error = Region::open(&path, &options()).unwrap_err();
        assert!(matches!(error, RegionError::Foreign(_)), "{error}");
        assert_eq!(fs::read(&path).unwrap(), vec![b'x'; 1 << 20]);
    }

    #[test]
    fn a_region_that_cannot_be_created_leaves_no_file() {
        let directory = directory();
        let path = directory.path().join("region");
        let error = Region::create(&path, 4096, &options()).unwrap_err();
        assert!(
            matches!(error, RegionError::TooSmall { found: 4096, .. }),
            "{error}"
        );
        match Region::create(&path, LEN, &options().map_as(MapAs::Dax)) {
            // The tests may run on persistent memory.
            Ok(region) => {
                drop(region);
                fs::remove_file(&path).unwrap();
            }
            Err(RegionError::Map { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(!path.exists());
        let error = Region::open(&path, &options()).unwrap_err();
        assert!(matches!(error, RegionError::NotFound(_)), "{error}");
        assert!(
            error.to_string().contains("create the region first"),
            "{error}"
        );
    }

    #[test]
    fn a_region_is_open_once() {
        let directory = directory();
        let path = directory.path().join("region");
        let region = Region::create(&path, LEN, &options()).unwrap();
        let open = || Region::open(&path, &options());
        assert!(matches!(open(), Err(RegionError::OpenHere(_))));
        // Another name of the same file is the same region.
        let link = directory.path().join("link");
        fs::hard_link(&path, &link).unwrap();
        let linked = Region::open(&link, &options());
        assert!(matches!(linked, Err(RegionError::OpenHere(_))));
        // A mapping keeps the region open.
        let mapping = Arc::clone(region.mapping());
        drop(region);
        assert!(matches!(open(), Err(RegionError::OpenHere(_))));
        drop(mapping);
        open().unwrap();
    }

    #[test]
    fn a_region_that_another_process_has_open_is_refused() {
        let directory = directory();
        let path = directory.path().join("region");
        drop(Region::create(&path, LEN, &options()).unwrap());
        // `flock` holds the lock while its child waits for the end of its input.
        let child = Command::new("flock")
            .arg(&path)
            .args(["sh", "-c", "echo locked; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            println!("SKIPPED: no `flock`");
            return;
        };
        let mut line = [0; 7];
        let mut output = child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut output, &mut line).unwrap();
        let error = Region::open(&path, &options()).unwrap_err();
        assert!(matches!(error, RegionError::OpenElsewhere(_)), "{error}");
        Region::open_read_only(&path, &options()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        Region::open(&path, &options()).unwrap();
    }

    #[test]
    fn readers_see_a_region_that_is_open() {
        let directory = directory();
        let path = directory.path().join("region");
        let region = Region::create(&path, LEN, &options()).unwrap();
        let reader = Region::open_read_only(&path, &options()).unwrap();
        region.set_root(1, 12).unwrap();
        assert_eq!(reader.root(1).unwrap(), 12);
        assert!(reader.mapping().is_read_only());
        drop(reader);
        drop(region);
        let region = Region::open(&path, &options()).unwrap();
        assert!(region.was_closed());
    }

    /// The opening process maps the file, another one extends the region, and only then the header is
    /// read.
    #[test]
    fn a_region_that_another_process_extends_meanwhile_can_be_opened() {
        let directory = directory();
        let path = directory.path().join("region");
        drop(Region::create(&path, LEN, &options()).unwrap());
        let shared = options().shared(true);
        let region = Region::open(&path, &shared).unwrap();
        for shared in [shared, options()] {
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let mapping = Mapping::of_file(file.unwrap(), &options().map).unwrap();
            let len = region.len() + LEN;
            region.grow(len).unwrap();
            assert_eq!(Region::open_in(mapping, &shared).unwrap().len(), len);
        }
    }

    #[test]
    fn a_region_that_was_cut_off_is_refused() {
        let directory = directory();
        let path = directory.path().join("region");
        drop(Region::create(&path, 2 * LEN, &options()).unwrap());
        for len in [LEN, UNIT, 8] {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(len).unwrap();
            let error = Region::open(&path, &options()).unwrap_err();
            assert!(matches!(error, RegionError::TooSmall { .. }), "{error}");
        }
        fs::write(&path, "").unwrap();
        let error = Region::open(&path, &options()).unwrap_err();
        assert!(matches!(error, RegionError::Unfinished(_)), "{error}");
    }
}
