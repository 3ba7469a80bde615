//! Simulated logs, and the states that a database should have.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_nvwal::{LogError, LogOptions, Mark, Reader, Recovery, Writer, WriterOptions};
use braid_pmem::{Image, Mapping, Region, RegionOptions, SimulatedMemory, SimulatedOptions};

/// Bytes of a page in these tests.
pub(crate) const PAGE: usize = 96;
/// Where the log starts.
pub(crate) const START: u64 = Region::DATA_START;

/// Pages by number. A page that is not there is all zeros.
pub(crate) type Pages = BTreeMap<u64, Vec<u8>>;

/// Room for a few blocks.
pub(crate) fn simulated() -> SimulatedOptions {
    SimulatedOptions::default()
        .capacity(START + (128 << 10))
        .device_bytes(START + (64 << 10))
}

/// A log with blocks that are about as long as a record.
pub(crate) fn log_options() -> LogOptions {
    LogOptions::default()
        .page_size(PAGE as u32)
        .block_size(256)
        .max_bytes(3 * 8192)
}

pub(crate) fn new_memory() -> (SimulatedMemory, Arc<Region>) {
    let memory = SimulatedMemory::new(Region::MIN_LEN, simulated());
    let region = Region::create_in(Mapping::simulated(&memory), &RegionOptions::default());
    (memory, Arc::new(region.unwrap()))
}

pub(crate) fn create(options: &WriterOptions) -> (SimulatedMemory, Arc<Region>, Writer) {
    let (memory, region) = new_memory();
    let writer = Writer::create(Arc::clone(&region), START, &log_options(), options);
    (memory, region, writer.unwrap())
}

/// Opens the log in a memory, as the next process does.
pub(crate) fn try_open(
    memory: &SimulatedMemory,
    options: &WriterOptions,
) -> Result<(Arc<Region>, Writer, Recovery), LogError> {
    let region = Region::open_in(Mapping::simulated(memory), &RegionOptions::default())?;
    let region = Arc::new(region);
    let (writer, report) = Writer::open(Arc::clone(&region), START, options)?;
    Ok((region, writer, report))
}

pub(crate) fn open(
    memory: &SimulatedMemory,
    options: &WriterOptions,
) -> (Arc<Region>, Writer, Recovery) {
    try_open(memory, options).unwrap()
}

pub(crate) fn reader(memory: &SimulatedMemory) -> Reader {
    Reader::open(Arc::new(Mapping::simulated(memory)), START).unwrap()
}

pub(crate) fn from_image(image: &Image) -> SimulatedMemory {
    SimulatedMemory::from_image(image, simulated())
}

/// A page that has this byte everywhere.
pub(crate) fn page_of(byte: u8) -> Vec<u8> {
    vec![byte; PAGE]
}

/// Changes a page as programs do: a few bytes, a run, everything, or nothing.
pub(crate) fn edit(page: &mut [u8], random: &mut fastrand::Rng) {
    match random.u8(..10) {
        0 => {}
        1 => page.fill(0),
        2 => page.fill_with(|| random.u8(..)),
        3..=4 => {
            let start = random.usize(..page.len());
            let end = random.usize(start..page.len());
            page[start..=end].fill(random.u8(..));
        }
        _ => {
            for _ in 0..random.usize(1..4) {
                page[random.usize(..PAGE)] = random.u8(..);
            }
        }
    }
}

/// All images of the committed log.
pub(crate) fn images(writer: &mut Writer) -> Result<(Mark, Pages), LogError> {
    let checkpoint = writer.checkpoint()?;
    let mark = checkpoint.mark();
    Ok((mark, checkpoint.collect::<Result<_, _>>()?))
}

/// All images that a reader sees.
pub(crate) fn images_of_reader(reader: &Reader) -> Result<Pages, LogError> {
    let mut pages = Pages::new();
    for page in reader.pages() {
        let mut image = vec![0; PAGE];
        assert!(reader.read(page, &mut image)?);
        pages.insert(page, image);
    }
    Ok(pages)
}

/// A database with the pages of a log in front of it.
pub(crate) fn overlaid(database: &Pages, log: &Pages) -> Pages {
    let mut pages = database.clone();
    pages.extend(log.iter().map(|(page, image)| (*page, image.clone())));
    pages
}
