use std::sync::{Arc, Mutex, OnceLock};

use braid_io::MemoryDevice;

use super::*;
use crate::commit::pending::PendingCommit;
use crate::commit::ticket::Ticket;
use crate::protocol::kind::ProtocolKind;
use crate::{Log, LogOptions};

/// Records what was acknowledged at each announcement.
#[derive(Default)]
struct Recorder {
    log: OnceLock<Arc<Core>>,
    needs_order: bool,
    acknowledged: Mutex<Vec<SeqNo>>,
    /// Whether announcements fail.
    fails: AtomicBool,
}

impl Announcer for Arc<Recorder> {
    fn announce(&self, _durable: SeqNo) -> std::io::Result<()> {
        let core = self.log.get().expect("the log is there");
        self.acknowledged.lock().unwrap().push(core.acknowledged());
        if self.fails.load(Ordering::SeqCst) {
            return Err(std::io::Error::other("refused"));
        }
        Ok(())
    }

    fn needs_order(&self) -> bool {
        self.needs_order
    }
}

/// A log of two lanes whose flushes are made by threads that wait.
fn log_of_two_lanes(protocol: ProtocolKind, needs_order: bool) -> (Log, Arc<Recorder>) {
    let options = LogOptions {
        protocol,
        strands: 2,
        lanes: 2,
        flush_mode: FlushMode::Callers,
        ..LogOptions::default()
    };
    let log = Log::create(Arc::new(MemoryDevice::new()), options).unwrap();
    let recorder = Arc::new(Recorder {
        needs_order,
        ..Recorder::default()
    });
    assert!(recorder.log.set(log.core().clone()).is_ok());
    log.announce_durable(recorder.clone());
    (log, recorder)
}

fn append(log: &Log, strand: usize) -> Ticket {
    let core = log.core();
    let handle = &log.inner().strand_handles[strand];
    let reservation = core.reserve(&core.lanes[handle.lane], 1).unwrap();
    let slot = core.commit_slots.enter(strand).unwrap();
    let mut pending = PendingCommit::new(handle, slot, reservation, None);
    pending.assign(1);
    pending.append(&[b"x"]);
    pending.finish()
}

/// A reader that believes an announcement must find it withdrawn before a commit is acknowledged
/// that it does not contain.
#[test]
fn a_lane_announces_before_it_acknowledges() {
    let (log, recorder) = log_of_two_lanes(ProtocolKind::Gsn, false);
    let first = append(&log, 0);
    // After the first flush, which raises the durable seqno to before the number that lies in the
    // buffer, it stays there.
    for _ in 0..2 {
        recorder.acknowledged.lock().unwrap().clear();
        let second = append(&log, 1);
        second.wait().unwrap();
        assert!(second.is_durable() && !first.is_durable());
        assert!(log.durable_seqno() < first.seqno());
        let acknowledged = recorder.acknowledged.lock().unwrap();
        assert!(acknowledged.iter().any(|&last| last < second.seqno()));
    }
    first.wait().unwrap();
    assert_eq!(log.durable_seqno(), log.last_seqno());
}

/// Readers would trust what stands there. With every protocol.
#[test]
fn nothing_is_acknowledged_after_an_announcement_has_failed() {
    for &protocol in ProtocolKind::ALL {
        if crate::protocol::of(protocol).forced_strands().is_some() {
            continue;
        }
        let (log, recorder) = log_of_two_lanes(protocol, false);
        append(&log, 0).wait().unwrap();
        let acknowledged = log.acknowledged();
        recorder.fails.store(true, Ordering::SeqCst);
        let ticket = append(&log, 0);
        let error = ticket.wait().unwrap_err().to_string();
        assert!(
            error.contains("readers in other processes: refused"),
            "{error}"
        );
        assert!(
            !ticket.is_durable() && log.acknowledged() == acknowledged,
            "{protocol}"
        );
        recorder.fails.store(false, Ordering::SeqCst);
        assert!(log.is_poisoned(), "{protocol}");
    }
}

/// With every protocol: an announcement before each acknowledgement contains it.
#[test]
fn nothing_is_acknowledged_above_the_durable_seqno_if_announcements_need_the_order() {
    for &protocol in ProtocolKind::ALL {
        if crate::protocol::of(protocol).forced_strands().is_some() {
            continue;
        }
        let (log, _) = log_of_two_lanes(protocol, true);
        for strand in [1, 0] {
            let others = append(&log, 1 - strand);
            let ticket = append(&log, strand);
            assert!(!ticket.is_durable(), "{protocol}");
            ticket.wait().unwrap();
            assert!(others.is_durable(), "{protocol}: flushed as well");
            assert!(log.durable_seqno() >= ticket.seqno(), "{protocol}");
            assert_eq!(log.acknowledged(), log.durable_seqno(), "{protocol}");
        }
    }
}
