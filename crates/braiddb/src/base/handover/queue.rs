//! A bounded queue of several senders and one receiver, after Vyukov's.
//!
//! Each slot has a turn, which says whose the slot is: a sender's for the entry of this number, or the
//! receiver's. So no thread waits for another one: a sender that is suspended while it has a slot delays
//! the receiver, which then finds the queue empty, and nobody else.

use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;

use crate::base::sync::{AtomicUsize, Latch};

pub(super) struct Queue<T> {
    slots: Box<[Slot<T>]>,
    /// Number of entries for which a sender has a slot.
    sent: CachePadded<AtomicUsize>,
    /// Number of entries that the receiver has taken.
    taken: CachePadded<AtomicUsize>,
}

struct Slot<T> {
    /// The number of the entry for which the slot is free; one more while the entry is in it.
    turn: AtomicUsize,
    /// Never contended: the turn says who may acquire the latch.
    value: Latch<Option<T>>,
}

impl<T> Queue<T> {
    /// Creates a queue with room for so many entries: a power of two, since numbers wrap around, and
    /// at least two, since one more than a number must not be the number of the next lap.
    pub(super) fn new(room: usize) -> Self {
        assert!(room >= 2 && room.is_power_of_two());
        let slot = |number| Slot {
            turn: AtomicUsize::new(number),
            value: Latch::new(None),
        };
        Self {
            slots: (0..room).map(slot).collect(),
            sent: CachePadded::default(),
            taken: CachePadded::default(),
        }
    }

    fn slot(&self, number: usize) -> &Slot<T> {
        &self.slots[number % self.slots.len()]
    }

    /// Adds an entry, and returns whether there was room.
    pub(super) fn push(&self, value: T) -> bool {
        // Relaxed here and in the exchange: the turns order the entries.
        let mut number = self.sent.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(number);
            // Acquire: pairs with the store in `pop`, after the former entry was taken.
            let turn = slot.turn.load(Ordering::Acquire);
            if turn == number {
                let (next, relaxed) = (number.wrapping_add(1), Ordering::Relaxed);
                let drawn = self
                    .sent
                    .compare_exchange_weak(number, next, relaxed, relaxed);
                match drawn {
                    Ok(_) => {
                        if braid_rt::mutant!("send_before_the_entry_is_there") {
                            slot.turn.store(next, Ordering::Release);
                        }
                        *slot.value.lock() = Some(value);
                        // Release: pairs with the load in `pop`.
                        slot.turn.store(next, Ordering::Release);
                        return true;
                    }
                    Err(now) => number = now,
                }
            } else if turn.wrapping_sub(number) > usize::MAX / 2 {
                // The entry of a lap ago is in the slot.
                return false;
            } else {
                // Another sender has drawn the number, which this load sees since the turn tells of it.
                number = self.sent.load(Ordering::Relaxed);
            }
        }
    }

    /// Takes the oldest entry, if its sender has added it. Only the receiver calls this.
    pub(super) fn pop(&self) -> Option<T> {
        // Relaxed: only the receiver changes it.
        let number = self.taken.load(Ordering::Relaxed);
        let next = number.wrapping_add(1);
        let slot = self.slot(number);
        // Acquire: pairs with the store in `push`, after which the entry is there.
        if slot.turn.load(Ordering::Acquire) != next {
            return None;
        }
        let free_for = number.wrapping_add(self.slots.len());
        if braid_rt::mutant!("free_a_slot_before_its_entry_is_taken") {
            slot.turn.store(free_for, Ordering::Release);
        }
        let value = slot.value.lock().take();
        // Release: pairs with the load in `push`.
        slot.turn.store(free_for, Ordering::Release);
        self.taken.store(next, Ordering::Relaxed);
        Some(value.expect("a sender stores the entry before it passes the slot on"))
    }

    /// Whether [`Queue::pop`] would find nothing. Only the receiver calls this.
    pub(super) fn is_empty(&self) -> bool {
        // Relaxed: as in `pop`, and the receiver's fence orders the look after what it announced.
        let number = self.taken.load(Ordering::Relaxed);
        self.slot(number).turn.load(Ordering::Relaxed) != number.wrapping_add(1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Entries leave in their order, over several laps, and a full queue refuses the next one.
    #[test]
    fn entries_leave_in_order_and_a_full_queue_refuses() {
        let queue = Queue::new(4);
        let mut next = 0..;
        for lap in 0..5 {
            assert!(queue.is_empty() && queue.pop().is_none());
            let sent = (0..4).filter(|i| queue.push(4 * lap + i)).count();
            assert_eq!((sent, queue.push(99)), (4, false));
            while let Some(value) = queue.pop() {
                assert_eq!(Some(value), next.next());
            }
        }
        assert_eq!(next.next(), Some(20));
    }

    /// The entries of each of several senders arrive once and in its order.
    #[test]
    fn several_senders_lose_nothing() {
        let (queue, entries) = (Queue::new(8), if cfg!(miri) { 20 } else { 2_000 });
        let mut next = [0_usize; 3];
        std::thread::scope(|scope| {
            for sender in 0..next.len() {
                let queue = &queue;
                scope.spawn(move || {
                    for entry in 0..entries {
                        while !queue.push((sender, entry)) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while next != [entries; 3] {
                match queue.pop() {
                    Some((sender, entry)) => {
                        assert_eq!(entry, next[sender]);
                        next[sender] += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        assert!(queue.is_empty());
    }
}
