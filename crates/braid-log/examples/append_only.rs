//! Several threads append and wait; then the log is reopened and its events are counted.

use std::sync::Arc;

use braid_io::{Device, MemoryDevice};
use braid_log::{Log, LogError, LogOptions};

const THREADS: u64 = 4;
const EACH: u64 = 10_000;

fn main() -> Result<(), LogError> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let options = LogOptions::default();
    let log = Log::create(Arc::clone(&device), options.clone())?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let log = &log;
                scope.spawn(move || -> Result<(), LogError> {
                    for event in 0..EACH {
                        let text = format!("event {event} of thread {thread}");
                        log.append(&[text.as_bytes()])?.wait()?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })?;
    let stats = log.stats();
    println!(
        "{} events in {} flushes, {} bytes",
        stats.records, stats.flushes, stats.written_bytes
    );
    log.close()?;

    let start = Log::recovery_position(&*device)?;
    let recovered = Log::recover(device, options, &start, &|_| {})?;
    let mut events = 0;
    recovered.for_each(|_| events += 1)?;
    println!(
        "{events} events found, the last has number {}",
        recovered.cut.get()
    );
    assert_eq!(events, THREADS * EACH);
    Ok(())
}
