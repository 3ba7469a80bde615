//! The cut: the part of the scanned lanes that recovery keeps, and the check that nothing
//! acknowledged is missing.

use std::collections::BTreeMap;

use crate::LogError;
use crate::base::numbers::{FlushNo, SeqNo};
use crate::format::checkpoint_position::{CheckpointPosition, LanePosition};
use crate::format::segment::segment_name;
use crate::protocol::kind::ProtocolKind;
use crate::protocol::torn::first_torn;
use crate::protocol::{self, Kept, Protocol, Run, Scanned};
use crate::recovery::scan::{Found, LaneScan};

/// The facts known about a damaged log before its cut is found.
#[derive(Clone, Copy)]
pub(super) struct Damage {
    /// The greatest durable seqno that a chunk records.
    pub(super) durable: SeqNo,
    /// Whether damage ends a lane early.
    pub(super) broken: bool,
}

/// The numbering of an incarnation: of every `stride` numbers after `base`, one was assigned.
struct Numbers {
    base: SeqNo,
    stride: u64,
}

impl Numbers {
    /// Returns the greatest number up to which none is missing, given that none is missing up to
    /// `from`.
    fn up_to_gap(&self, from: SeqNo, runs: &[Run]) -> SeqNo {
        let place = |seqno: SeqNo| seqno.count_after(self.base).div_ceil(self.stride);
        let (mut whole, mut newest) = (from, Run::default());
        for run in runs.iter().filter(|run| run.last > from) {
            if place(run.first) > place(whole) + 1 {
                break;
            }
            if run.last > whole {
                (whole, newest) = (run.last, *run);
            }
        }
        newest.cut_before_torn(whole)
    }
}

/// What recovery keeps.
pub(super) struct Cut {
    /// The newest number kept; the next incarnation continues from it.
    pub(super) cut: SeqNo,
    /// The newest incarnation.
    pub(super) incarnation: u32,
    /// The part of each incarnation that is kept.
    pub(super) kept: BTreeMap<u32, Kept>,
    /// Nothing above this number is kept, even if `kept` includes it.
    pub(super) ceiling: SeqNo,
    /// Log records that were found and are discarded.
    pub(super) discarded: u64,
}

impl Cut {
    /// Finds the cut. In a damaged log, the durable seqnos in chunks are ignored, and only records
    /// that were found count. In a log that another process writes, the cut is the durable seqno of
    /// that process (`limit`), and everything up to it must be found.
    pub(super) fn find(
        start: &CheckpointPosition,
        lanes: &mut [LaneScan],
        damage: Option<Damage>,
        limit: Option<SeqNo>,
    ) -> Result<Self, LogError> {
        check_identity(lanes)?;
        let incarnations = Incarnations::begun(lanes)?;
        incarnations.check_limit(lanes, limit)?;
        let (incarnation, newest) = incarnations.newest();
        let mut kept = incarnations.kept();
        let counts_as_one = incarnations.count_as_one(&kept);
        let base = if counts_as_one {
            start.seqno
        } else {
            braid_rt::coverage_point("recovery: incarnations that do not count as one");
            start.seqno.max(newest.base)
        };
        let durable_seqno = match damage {
            Some(_) => base,
            None => incarnations.durable_seqno(lanes, base)?,
        };
        let durable_seqno = durable_seqno.max(limit.unwrap_or(SeqNo::NONE));
        let all_lanes = if braid_rt::mutant!("take_lanes_for_constant") {
            lanes.len()
        } else {
            newest.lanes()
        };
        let mut scanned = Scanned {
            base,
            durable_seqno,
            flush_base: flush_base(start, incarnation),
            lanes: all_lanes,
            ..Scanned::default()
        };
        note_empty_lanes(lanes);
        let mut discarded = 0;
        for lane in lanes.iter_mut() {
            discarded += discard_dead(lane, &kept);
            let counts = |of| counts_as_one || of == incarnation;
            gather(lane, incarnation, counts, &mut scanned);
        }
        scanned.tail.sort_unstable();
        scanned.flushes.sort_unstable();
        // For a log that is being written, the protocol's cut only proves that nothing is missing.
        let newest_kept = match (newest.protocol.cut(&scanned)?, limit) {
            (kept, None) => kept,
            (kept, Some(limit)) => kept.up_to(limit),
        };
        let (mut cut, behind) = newest_number_kept(&scanned, &newest_kept);
        discarded += behind;
        let mut ceiling = limit.unwrap_or(SeqNo::MAX);
        if let Some(damage) = damage {
            let whole = whole_up_to(start, newest, &scanned.tail);
            if damage.broken || whole < damage.durable {
                cut = cut.min(whole);
            }
            ceiling = cut;
        } else {
            if limit.is_none() {
                cut = newest.protocol.next_base(newest.base, cut, all_lanes);
            }
            check_after_the_end(lanes, incarnation, cut)?;
        }
        kept.insert(incarnation, newest_kept);
        Ok(Self {
            cut,
            incarnation,
            kept,
            ceiling,
            discarded,
        })
    }

    /// Finds the cut of a log of which side lanes are missing: the greatest number that a chunk or a header
    /// says was durable in all lanes, at least `known`. Later numbers may have been acknowledged, or never
    /// durable: only the missing lanes know. Of a log that another process writes, the cut is `limit`.
    ///
    /// Fails if there is log after the end of a lane that a chunk says belongs to it: if it is what a crash
    /// left, the missing lanes have the numbers in between, and if it is behind damage, they do not.
    pub(super) fn find_proven(
        start: &CheckpointPosition,
        lanes: &mut [LaneScan],
        known: SeqNo,
        limit: Option<SeqNo>,
    ) -> Result<Self, LogError> {
        check_identity(lanes)?;
        let incarnations = Incarnations::begun(lanes)?;
        incarnations.check_limit(lanes, limit)?;
        let (incarnation, _) = incarnations.newest();
        let mut kept = incarnations.kept();
        let proven = incarnations.durable_seqno(lanes, start.seqno.max(known))?;
        let mut cut = limit.unwrap_or(proven);
        if braid_rt::mutant!("read_beyond_what_is_proven") {
            let runs = lanes.iter().flat_map(|lane| lane.found.values());
            let newest = runs.flat_map(|found| found.runs.iter().map(|run| run.last));
            cut = newest.max().unwrap_or_default().max(cut);
        }
        if limit.is_none() {
            check_after_the_end(lanes, incarnation, cut).map_err(undecided)?;
        }
        let mut discarded = 0;
        for lane in lanes.iter_mut() {
            discarded += discard_dead(lane, &kept);
            let runs = lane.found.values().flat_map(|found| &found.runs);
            discarded += runs.filter(|run| run.last > cut).count() as u64;
        }
        kept.insert(incarnation, Kept::Numbers(cut));
        Ok(Self {
            cut,
            incarnation,
            kept,
            ceiling: cut,
            discarded,
        })
    }
}

/// Rejects files of several logs: no crash mixes them.
fn check_identity(lanes: &[LaneScan]) -> Result<(), LogError> {
    let id = lanes[0].id;
    if lanes.iter().all(|lane| lane.id == id || lane.is_absent()) {
        return Ok(());
    }
    Err(LogError::Incompatible {
        what: "cannot open the log: its files belong to different logs; restore the files that belong together".to_owned(),
    })
}

/// Creates a corruption error for the segment in which a lane ends.
fn corrupted(what: impl Into<String>, lane: &LaneScan) -> LogError {
    let name = segment_name(lane.end.lane, lane.end_segment);
    LogError::corrupted(what, &name, 0)
}

/// The contents of an incarnation's headers, which are the same in all lanes.
struct Incarnation {
    base: SeqNo,
    /// The part of the previous incarnation that this one keeps.
    kept: Vec<u64>,
    protocol: &'static dyn Protocol,
    /// The identifier of the protocol in the headers.
    header_id: u8,
}

impl Incarnation {
    fn new(found: &Found) -> Result<Self, LogError> {
        let Some(kind) = ProtocolKind::from_header_id(found.protocol) else {
            return Err(LogError::Incompatible {
                what: format!(
                    "cannot open the log: it was written with commit protocol number {}, which this build does not know; use a matching version",
                    found.protocol
                ),
            });
        };
        Ok(Self {
            base: found.base,
            kept: found.kept.clone(),
            protocol: protocol::of(kind),
            header_id: found.protocol,
        })
    }

    /// The number of lanes with which it was written: each has a word. Side lanes begin and end with
    /// incarnations.
    fn lanes(&self) -> usize {
        self.kept.len()
    }

    fn is_of(&self, found: &Found) -> bool {
        self.base == found.base && self.kept == found.kept && self.header_id == found.protocol
    }
}

/// The incarnations of the scanned log.
struct Incarnations(BTreeMap<u32, Incarnation>);

impl Incarnations {
    fn begun(lanes: &[LaneScan]) -> Result<Self, LogError> {
        let mut all: BTreeMap<u32, Incarnation> = BTreeMap::new();
        for lane in lanes {
            for (&incarnation, found) in &lane.found {
                let begun = Incarnation::new(found)?;
                if begun.lanes() == 0 {
                    return Err(corrupted(
                        format!("the headers of incarnation {incarnation} name no lanes"),
                        lane,
                    ));
                }
                if !all.entry(incarnation).or_insert(begun).is_of(found) {
                    return Err(corrupted(
                        format!("the headers of incarnation {incarnation} differ between lanes"),
                        lane,
                    ));
                }
            }
        }
        Ok(Self(all))
    }

    fn newest(&self) -> (u32, &Incarnation) {
        let Some((&incarnation, newest)) = self.0.last_key_value() else {
            unreachable!("the first header of each lane counts")
        };
        (incarnation, newest)
    }

    /// Checks that another process, whose log is durable up to `limit`, has not begun an
    /// incarnation meanwhile.
    fn check_limit(&self, lanes: &[LaneScan], limit: Option<SeqNo>) -> Result<(), LogError> {
        let newest = self.newest().1;
        if limit.is_some_and(|limit| newest.base > limit) {
            return Err(corrupted(
                "another process began to write the log during the read",
                &lanes[0],
            ));
        }
        Ok(())
    }

    /// Returns the part kept of each older incarnation, from the header of the incarnation after
    /// it.
    fn kept(&self) -> BTreeMap<u32, Kept> {
        let next = self.0.values().skip(1);
        let pairs = self.0.iter().zip(next);
        pairs
            .map(|((&incarnation, begun), next)| {
                let lanes = begun.lanes();
                let kept = begun.protocol.kept(next.base, &next.kept, lanes);
                (incarnation, kept)
            })
            .collect()
    }

    /// Whether the gap rule includes older incarnations: they used the same protocol, which keeps
    /// transactions by their numbers.
    fn count_as_one(&self, kept: &BTreeMap<u32, Kept>) -> bool {
        let protocol = self.newest().1.protocol;
        self.0.values().all(|b| b.protocol.id() == protocol.id())
            && kept.values().all(|kept| matches!(kept, Kept::Numbers(_)))
            && matches!(protocol.kept(SeqNo::NONE, &[0], 1), Kept::Numbers(_))
    }

    /// The greatest number that a chunk or a header records as durable, at least `base`.
    fn durable_seqno(&self, lanes: &[LaneScan], base: SeqNo) -> Result<SeqNo, LogError> {
        let mut durable_seqno = base.max(self.newest().1.base);
        for lane in lanes {
            for (&of, found) in &lane.found {
                // Records that a later incarnation discarded were never acknowledged.
                let next = self.0.range(of + 1..).next();
                if next.is_some_and(|(_, next)| found.durable_seqno > next.base) {
                    // Chunks of two logs: neither a crash nor a single damaged block explains this.
                    return Err(corrupted(
                        format!(
                            "a chunk of incarnation {of} calls number {} durable, but a later incarnation discarded it",
                            found.durable_seqno
                        ),
                        lane,
                    ));
                }
                durable_seqno = durable_seqno.max(found.durable_seqno);
            }
        }
        Ok(durable_seqno)
    }
}

/// The last flush of the newest incarnation that the checkpoint covers.
fn flush_base(start: &CheckpointPosition, incarnation: u32) -> FlushNo {
    // A side lane without log has no flushes.
    let has_log =
        |lane: &&LanePosition| !lane.is_absent() || braid_rt::mutant!("ask_lanes_without_log");
    let mut lanes = start.lanes.iter().filter(has_log);
    if lanes.all(|lane| lane.incarnation == incarnation) {
        return start.flush;
    }
    braid_rt::coverage_point("recovery: begins in an older incarnation");
    FlushNo::NONE
}

fn note_empty_lanes(lanes: &[LaneScan]) {
    let mut present = lanes.iter().filter(|lane| !lane.is_absent());
    if present.any(|lane| lane.chunks == 0) && lanes.iter().any(|lane| lane.chunks > 0) {
        braid_rt::coverage_point("recovery: a lane without chunks alongside one with some");
    }
}

/// Removes the log records of older incarnations that later ones discarded; returns how many.
fn discard_dead(lane: &mut LaneScan, kept: &BTreeMap<u32, Kept>) -> u64 {
    let mut discarded = 0;
    for (of, found) in &mut lane.found {
        let Some(kept) = kept.get(of) else { continue };
        let before = found.runs.len();
        found.runs.retain(|run| kept.holds(run.last, run.flush));
        let dead = (before - found.runs.len()) as u64;
        if dead > 0 {
            braid_rt::coverage_point("recovery: dead log records of an older incarnation");
        }
        discarded += dead;
    }
    discarded
}

/// Moves the results of a lane's scan to `scanned`. Numbers up to the durable seqno are counted in
/// the incarnations that `counts` names.
fn gather(lane: &mut LaneScan, newest: u32, counts: impl Fn(u32) -> bool, scanned: &mut Scanned) {
    let mut dependents = Vec::new();
    for (&of, found) in &mut lane.found {
        let count = found.take_up_to(scanned.durable_seqno);
        if counts(of) {
            scanned.found_to_durable += count;
        }
        if of == newest {
            scanned.flushes.append(&mut found.flushes);
            dependents.append(&mut found.dependents);
        }
        scanned.tail.append(&mut found.runs);
    }
    dependents.sort_unstable_by_key(|dependent| dependent.seqno);
    scanned.dependents.push(dependents);
}

/// Returns the newest number kept, and the count of log records after the cut.
fn newest_number_kept(scanned: &Scanned, kept: &Kept) -> (SeqNo, u64) {
    let mut cut = scanned.base.max(scanned.durable_seqno);
    let mut behind = 0;
    for run in &scanned.tail {
        if kept.holds(run.last, run.flush) {
            cut = cut.max(run.last);
        } else {
            braid_rt::coverage_point("recovery: whole log records after the cut");
            behind += 1;
        }
    }
    (cut, behind)
}

/// Returns the number up to which a damaged log is complete. A prefix of the numbers is a prefix of
/// a serial order, for every protocol's order of acknowledgement. The first missing number may
/// belong to an older incarnation, whose later records are then lost as well.
fn whole_up_to(start: &CheckpointPosition, newest: &Incarnation, tail: &[Run]) -> SeqNo {
    let numbers = Numbers {
        base: newest.base,
        stride: newest.protocol.stride(newest.lanes()),
    };
    let whole = numbers.up_to_gap(start.seqno.max(newest.base), tail);
    whole.min(first_torn(tail.iter()).prev())
}

/// Says that the missing lanes are needed: what lies after the end of a lane is what a crash left, or
/// behind damage. Only the numbers in all lanes show which.
fn undecided(error: LogError) -> LogError {
    match error {
        LogError::Corrupted { what, file, offset } => LogError::Undecided { what, file, offset },
        error => error,
    }
}

/// Checks I1: nothing after the end of a lane may show that a number above the cut was durable.
fn check_after_the_end(lanes: &[LaneScan], newest: u32, cut: SeqNo) -> Result<(), LogError> {
    for lane in lanes {
        if let Some(behind) = lane.behind
            && lane.end.incarnation == newest
            && behind.durable_seqno > cut
        {
            let durable_seqno = behind.durable_seqno;
            braid_rt::coverage_point("damage: a chunk after the end names what is missing");
            return Err(LogError::corrupted(
                format!(
                    "the log ends at number {cut}, but this chunk says that {durable_seqno} was durable"
                ),
                &segment_name(lane.end.lane, behind.segment),
                behind.offset,
            ));
        }
        for (name, header) in &lane.beyond {
            // A crash may lose concurrently written chunks in any order, which leaves segments
            // after the end. But such a segment never belongs to a later incarnation, and was never
            // begun with a durable seqno above the cut.
            braid_rt::coverage_point("recovery: a segment after the end");
            let later = header.incarnation > lane.end.incarnation;
            if later || (header.incarnation == newest && header.durable_seqno > cut) {
                braid_rt::coverage_point(
                    "damage: a segment after the end shows that log is missing",
                );
                return Err(LogError::corrupted(
                    format!("the log ends at number {cut}, before this segment"),
                    name,
                    0,
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::numbers::LaneId;
    use crate::format::BLOCK;
    use crate::format::padding::Padding;
    use crate::format::segment::SegmentHeader;
    use crate::protocol::Dependent;
    use crate::recovery::scan::{Behind, ScanMode};

    const GLSN: ProtocolKind = ProtocolKind::Glsn;
    const GSN: ProtocolKind = ProtocolKind::Gsn;
    const GWSN: ProtocolKind = ProtocolKind::Gwsn;
    const SERIAL: ProtocolKind = ProtocolKind::Serial;

    fn position(incarnation: u32) -> LanePosition {
        LanePosition {
            segment: 1,
            offset: BLOCK as u64,
            chunk: 1,
            link: 0,
            incarnation,
        }
    }

    /// A checkpoint position in incarnation 1 of `lanes` lanes.
    fn start(seqno: u64, flush: u64, lanes: usize) -> CheckpointPosition {
        CheckpointPosition {
            seqno: SeqNo::new(seqno),
            flush: FlushNo::new(flush),
            lanes: vec![position(1); lanes],
        }
    }

    fn header(lane: LaneId, incarnation: u32, durable_seqno: u64) -> SegmentHeader {
        SegmentHeader {
            log: 77,
            lane,
            lanes: 1,
            protocol: 0,
            sequence: 1,
            incarnation,
            link: 0,
            base: SeqNo::NONE,
            first_chunk: 1,
            durable_seqno: SeqNo::new(durable_seqno),
            len: 1 << 20,
            padding: Padding::BLOCK,
            has_seed: true,
            shares_units: true,
            kept: Vec::new(),
            successor: None,
        }
    }

    /// The scan of a lane that ends in the newest of these incarnations.
    fn lane(index: usize, found: Vec<(u32, Found)>) -> LaneScan {
        let mode = ScanMode {
            read_ahead: false,
            salvage: false,
            limit: None,
        };
        let newest = found.last().map_or(1, |(incarnation, _)| *incarnation);
        let index = LaneId::new(index);
        let header = header(index, newest, 0);
        let mut lane = LaneScan::new(index, &position(newest), header, None, mode);
        lane.found = found.into_iter().collect();
        lane
    }

    /// What a lane holds of an incarnation: these numbers, each a run of its own.
    fn holds(protocol: ProtocolKind, base: u64, durable: u64, numbers: &[u64]) -> Found {
        let mut found = Found::default();
        found.protocol = protocol.id();
        found.base = SeqNo::new(base);
        found.kept = vec![base];
        found.durable_seqno = SeqNo::new(durable);
        let run = |&number| Run {
            first: SeqNo::new(number),
            last: SeqNo::new(number),
            flush: FlushNo::NONE,
            ..Run::default()
        };
        found.runs = numbers.iter().map(run).collect();
        found
    }

    /// A log with one lane and one incarnation.
    fn one(protocol: ProtocolKind, durable: u64, numbers: &[u64]) -> Vec<LaneScan> {
        vec![lane(0, vec![(1, holds(protocol, 0, durable, numbers))])]
    }

    fn find(lanes: &mut [LaneScan]) -> Result<Cut, LogError> {
        Cut::find(&start(0, 0, lanes.len()), lanes, None, None)
    }

    #[track_caller]
    fn assert_corrupted(found: Result<Cut, LogError>) {
        match found {
            Err(LogError::Corrupted { .. }) => {}
            Err(error) => panic!("{error}"),
            Ok(cut) => panic!("accepted up to {}", cut.cut),
        }
    }

    #[test]
    fn files_of_two_logs_are_refused() {
        let two = || [0, 1].map(|index| lane(index, vec![(1, holds(GLSN, 0, 0, &[]))]));
        assert!(find(&mut two()).is_ok());
        let mut mixed = two();
        mixed[1].id += 1;
        assert!(matches!(
            find(&mut mixed),
            Err(LogError::Incompatible { .. })
        ));
    }

    #[test]
    fn the_headers_of_an_incarnation_agree() {
        let with = |change: fn(&mut Found)| {
            let first = holds(GLSN, 0, 0, &[]);
            let mut second = holds(GLSN, 0, 0, &[]);
            change(&mut second);
            find(&mut [lane(0, vec![(1, first)]), lane(1, vec![(1, second)])])
        };
        assert!(with(|_| {}).is_ok());
        assert_corrupted(with(|found| found.base = SeqNo::new(1)));
        assert_corrupted(with(|found| found.kept = vec![1]));
        assert_corrupted(with(|found| found.kept = vec![0, 0]));
        let mut none = holds(GLSN, 0, 0, &[]);
        none.kept.clear();
        assert_corrupted(find(&mut [lane(0, vec![(1, none)])]));
        assert_corrupted(with(|found| found.protocol = SERIAL.id()));
    }

    #[test]
    fn an_incarnation_of_another_process_after_the_limit_is_noticed() {
        let limited = |limit| {
            let found = (2, holds(GLSN, 5, 5, &[1, 2, 3, 4, 5, 6]));
            let mut lanes = [lane(0, vec![found])];
            Cut::find(&start(0, 0, 1), &mut lanes, None, Some(SeqNo::new(limit)))
        };
        assert_eq!(limited(5).unwrap().cut.get(), 5);
        assert_eq!(limited(6).unwrap().ceiling.get(), 6);
        assert_corrupted(limited(4));
    }

    /// The other process says that its log is durable up to the limit.
    #[test]
    fn everything_up_to_the_limit_is_found() {
        let limited = |numbers| {
            let mut lanes = one(GLSN, 5, numbers);
            Cut::find(&start(0, 0, 1), &mut lanes, None, Some(SeqNo::new(7)))
        };
        assert_eq!(limited(&[1, 2, 3, 4, 5, 6, 7]).unwrap().cut.get(), 7);
        assert_corrupted(limited(&[1, 2, 3, 4, 5, 6]));
    }

    /// `serial` keeps numbers after a gap, unless the log is damaged and the gap may be the damage.
    #[test]
    fn a_damaged_log_is_kept_up_to_what_may_be_missing() {
        let salvaged = |durable, broken| {
            let durable = SeqNo::new(durable);
            let damage = Damage { durable, broken };
            let mut lanes = one(SERIAL, 0, &[1, 2, 3, 4, 5, 6, 8]);
            let cut = Cut::find(&start(0, 0, 1), &mut lanes, Some(damage), None).unwrap();
            assert_eq!(cut.ceiling, cut.cut);
            cut.cut.get()
        };
        assert_eq!(salvaged(6, false), 8, "everything durable is there");
        assert_eq!(salvaged(7, false), 6);
        assert_eq!(salvaged(6, true), 6);
        assert_eq!(salvaged(7, true), 6);
    }

    #[test]
    fn numbers_after_a_gap_are_discarded() {
        let cut = find(&mut one(GLSN, 2, &[1, 2, 4])).unwrap();
        assert_eq!((cut.cut.get(), cut.discarded), (2, 1));
        assert_eq!(cut.ceiling, SeqNo::MAX);
        assert_corrupted(find(&mut one(GLSN, 3, &[1, 2, 4])));
    }

    /// Incarnation 2 keeps incarnation 1 up to number 3.
    fn two_incarnations(first: ProtocolKind, numbers: &[u64]) -> Result<Cut, LogError> {
        let first = holds(first, 0, 0, numbers);
        let second = holds(GLSN, 3, 5, &[4, 5, 6]);
        find(&mut [lane(0, vec![(1, first), (2, second)])])
    }

    #[test]
    fn what_an_incarnation_discarded_stays_discarded() {
        let cut = two_incarnations(GLSN, &[1, 2, 3, 4, 5]).unwrap();
        assert_eq!((cut.cut.get(), cut.discarded), (6, 2));
        assert_eq!(cut.kept[&1], Kept::Numbers(SeqNo::new(3)));
        assert_eq!(cut.kept[&2], Kept::Numbers(SeqNo::new(6)));
    }

    /// Acknowledged numbers may be in an older incarnation. `serial` leaves numbers out.
    #[test]
    fn incarnations_count_as_one_if_their_numbers_are_dense() {
        assert_corrupted(two_incarnations(GLSN, &[1, 3]));
        assert_eq!(two_incarnations(SERIAL, &[1, 3]).unwrap().cut.get(), 6);
    }

    /// Numbers of flushes restart with an incarnation.
    #[test]
    fn flushes_of_an_older_incarnation_fill_no_gap() {
        let flushes = |numbers: &[u64]| numbers.iter().copied().map(FlushNo::new).collect();
        let mut first = holds(GWSN, 0, 0, &[]);
        first.flushes = flushes(&[1, 2, 3, 4, 5, 6]);
        let mut second = holds(GWSN, 0, 0, &[]);
        second.flushes = flushes(&[1, 3]);
        let mut lanes = [lane(0, vec![(1, first), (2, second)])];
        let cut = Cut::find(&start(0, 5, 1), &mut lanes, None, None).unwrap();
        let kept = Kept::Flushes {
            last: FlushNo::new(1),
            up_to: SeqNo::MAX.prev(),
        };
        assert_eq!(cut.kept[&2], kept);
    }

    /// Numbers 5 and 9 of lane 1 depend on numbers of lane 0 that were lost. The flushes of a
    /// lane's strands are in no order of the numbers.
    #[test]
    fn a_lane_ends_before_its_first_dependent_on_a_lost_transaction() {
        let mut even = holds(GSN, 0, 0, &[2, 4]);
        let mut odd = holds(GSN, 0, 0, &[1, 3, 5, 7, 9]);
        let dependent = |(seqno, on)| Dependent {
            seqno: SeqNo::new(seqno),
            on: vec![SeqNo::new(on)],
        };
        odd.dependents = [(9, 8), (5, 6), (3, 4)].map(dependent).to_vec();
        (even.kept, odd.kept) = (vec![0, 0], vec![0, 0]);
        let cut = find(&mut [lane(0, vec![(1, even)]), lane(1, vec![(1, odd)])]).unwrap();
        let last = [4, 3].map(SeqNo::new).to_vec();
        assert_eq!(cut.kept[&1], Kept::Lanes { lanes: 2, last });
        assert_eq!(cut.discarded, 3);
        // The assignments of 4 and 5 took one number more, which the durable seqno may have been.
        assert_eq!(cut.cut.get(), 6);
    }

    /// I1: a crash explains chunks and segments after the end, unless they say that more was durable.
    #[test]
    fn an_end_is_proper_if_nothing_after_it_says_otherwise() {
        let with_chunk = |incarnation, durable| {
            let mut lanes = one(GLSN, 2, &[1, 2]);
            lanes[0].end.incarnation = incarnation;
            lanes[0].behind = Some(Behind {
                durable_seqno: SeqNo::new(durable),
                segment: 1,
                offset: 0,
            });
            find(&mut lanes)
        };
        assert_eq!(with_chunk(1, 2).unwrap().cut.get(), 2);
        assert_corrupted(with_chunk(1, 3));
        assert!(with_chunk(0, 3).is_ok(), "of an incarnation that has ended");
        let with_segment = |incarnation, durable| {
            let mut lanes = one(GLSN, 2, &[1, 2]);
            let header = header(LaneId::new(0), incarnation, durable);
            lanes[0].beyond = vec![("a segment".to_owned(), header)];
            find(&mut lanes)
        };
        assert_eq!(with_segment(1, 2).unwrap().cut.get(), 2);
        assert_corrupted(with_segment(1, 3));
        assert_corrupted(with_segment(2, 0));
    }
}
