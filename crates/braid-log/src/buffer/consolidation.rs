//! The consolidation array: one thread acquires a busy latch for many.
//!
//! Johnson et al., "Aether: a scalable approach to logging", VLDB 2010, §5: threads that meet at
//! the log's latch join a group instead of queueing. The first of a group takes the latch, closes
//! the group, reserves for all, and hands each member its share; the members then copy their own
//! bytes in parallel.
//!
//! The paper replaces a closed group in the array by a fresh one. Here new threads try another
//! group of the array, or the latch, and the last member to leave reopens the closed group.

use std::sync::atomic::Ordering;

use braid_rt::narrow;
use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Backoff, Mutex};

/// Most members of a group.
pub(crate) const MEMBERS_MAX: usize = if cfg!(all(test, loom)) { 2 } else { 16 };

/// Groups that can be in use at once.
const GROUPS: usize = if cfg!(all(test, loom)) { 1 } else { 4 };

const CLOSED: u64 = 1 << 63;
const MEMBER: u64 = 1 << 32;

/// A consolidation array whose members submit a `Q` and receive an `S`.
#[derive(Debug)]
pub(crate) struct Consolidation<Q, S> {
    groups: Box<[CachePadded<Group<Q, S>>]>,
}

#[derive(Debug)]
struct Group<Q, S> {
    /// `closed:1 | members:31 | bytes:32`.
    state: AtomicU64,
    /// A bit for each member whose request is in its seat.
    ready: AtomicU32,
    /// Whether the shares are in the seats.
    served: AtomicBool,
    /// Members that have not left.
    left: AtomicU32,
    seats: [Mutex<Seat<Q, S>>; MEMBERS_MAX],
}

#[derive(Debug)]
struct Seat<Q, S> {
    request: Option<Q>,
    share: Option<S>,
}

/// A seat in a group.
#[derive(Debug)]
pub(crate) struct Member<'a, Q, S> {
    group: &'a Group<Q, S>,
    seat: usize,
}

impl<Q, S> Consolidation<Q, S> {
    pub(crate) fn new() -> Self {
        let seat = |_| {
            Mutex::new(Seat {
                request: None,
                share: None,
            })
        };
        let group = |_| {
            CachePadded::new(Group {
                state: AtomicU64::new(0),
                ready: AtomicU32::new(0),
                served: AtomicBool::new(false),
                left: AtomicU32::new(0),
                seats: std::array::from_fn(seat),
            })
        };
        Self {
            groups: (0..GROUPS).map(group).collect(),
        }
    }

    /// Joins a group whose sum of `bytes` stays within `limit`. Returns the request if there is no
    /// such group. `hint` spreads threads over the array.
    pub(crate) fn join(
        &self,
        hint: usize,
        request: Q,
        bytes: u32,
        limit: u32,
    ) -> Result<Member<'_, Q, S>, Q> {
        for step in 0..GROUPS {
            let group = &*self.groups[(hint + step) % GROUPS];
            let mut state = group.state.load(Ordering::Relaxed);
            while let Some(joined) = with_member(state, bytes, limit) {
                // Acquire: pairs with the last member's Release in `share`, after which the group
                // is reset.
                match group.state.compare_exchange_weak(
                    state,
                    joined,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        let seat = members(state);
                        group.seats[seat].lock().request = Some(request);
                        // Relaxed: the thread that sees the bit locks the seat after this one.
                        group.ready.fetch_or(1 << seat, Ordering::Relaxed);
                        return Ok(Member { group, seat });
                    }
                    Err(now) => state = now,
                }
            }
        }
        Err(request)
    }
}

fn members(state: u64) -> usize {
    ((state & !CLOSED) / MEMBER) as usize
}

/// Returns the state with one more member, if the group has room for one.
fn with_member(state: u64, bytes: u32, limit: u32) -> Option<u64> {
    let sum = (state & (MEMBER - 1)) + u64::from(bytes);
    let takes = state & CLOSED == 0 && members(state) < MEMBERS_MAX && sum <= u64::from(limit);
    takes.then_some(state + MEMBER + u64::from(bytes))
}

impl<Q, S> Member<'_, Q, S> {
    /// Whether this member must acquire the latch, close the group and serve it.
    pub(crate) fn leads(&self) -> bool {
        self.seat == 0
    }

    /// Closes the group to new members. Returns the requests of all members, in the order in which
    /// they joined.
    pub(crate) fn close(&self) -> SmallVec<[Q; MEMBERS_MAX]> {
        debug_assert!(self.leads());
        // Relaxed: the locks of the seats order the members' writes.
        let members = members(self.group.state.fetch_or(CLOSED, Ordering::Relaxed));
        let all = (1u32 << members) - 1;
        let mut backoff = Backoff::default();
        // Relaxed: see `join`. A member that has joined is about to set its bit.
        while self.group.ready.load(Ordering::Relaxed) != all {
            backoff.wait();
        }
        let seats = self.group.seats[..members].iter();
        let requests = seats.map(|seat| seat.lock().request.take());
        requests
            .map(|request| request.expect("a member that is ready has a request"))
            .collect()
    }

    /// Hands the members their shares, as many as the requests that `close` returned.
    pub(crate) fn serve(&self, shares: impl ExactSizeIterator<Item = S>) {
        debug_assert!(self.leads());
        // Relaxed, both: a member that sees `served` locks its seat after this thread, and so sees
        // `left`, too.
        let count = narrow(shares.len());
        self.group.left.store(count, Ordering::Relaxed);
        for (seat, share) in self.group.seats.iter().zip(shares) {
            seat.lock().share = Some(share);
        }
        self.group.served.store(true, Ordering::Relaxed);
    }

    /// Waits for this member's share, and leaves the group.
    pub(crate) fn share(self) -> S {
        let group = self.group;
        let mut backoff = Backoff::default();
        // Relaxed: see `serve`.
        while !group.served.load(Ordering::Relaxed) {
            backoff.wait();
        }
        let share = group.seats[self.seat].lock().share.take();
        // Relaxed: the last member resets this state itself, and the seats' locks order the rest.
        if group.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            group.ready.store(0, Ordering::Relaxed);
            group.served.store(false, Ordering::Relaxed);
            // Release: pairs with `join`.
            group.state.store(0, Ordering::Release);
        }
        share.expect("a served member has a share")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_bounded_and_used_again() {
        let array: Consolidation<u32, u32> = Consolidation::new();
        for round in 0..3 {
            let leader = array.join(0, round, 10, 35).unwrap();
            let others: Vec<_> = (1..3).map(|i| array.join(0, i, 10, 35).unwrap()).collect();
            assert!(leader.leads() && others.iter().all(|member| !member.leads()));
            // The next request exceeds the limit; another group takes it.
            let stranger = array.join(0, 7, 10, 35).unwrap();
            assert!(stranger.leads());
            assert_eq!(leader.close()[..], [round, 1, 2]);
            assert_eq!(stranger.close()[..], [7]);
            leader.serve([100, 101, 102].into_iter());
            stranger.serve([200].into_iter());
            assert_eq!((leader.share(), stranger.share()), (100, 200));
            for (i, member) in (101..).zip(others) {
                assert_eq!(member.share(), i);
            }
        }
        let closed: Vec<_> = (0..GROUPS as u32)
            .map(|i| array.join(0, i, 1, 9).unwrap())
            .inspect(|leader| assert_eq!(leader.close().len(), 1))
            .collect();
        assert_eq!(array.join(0, 77, 1, 9).unwrap_err(), 77);
        for leader in closed {
            leader.serve([0].into_iter());
            leader.share();
        }
        assert!(array.join(0, 77, 1, 9).is_ok());
    }
}
