//! The state with which a running log acknowledges transactions as its protocol requires.

use super::epoch::Epochs;
use super::gsn::Hardening;
use super::gwsn::FlushOrder;
use crate::base::numbers::SeqNo;

/// The order in which a protocol acknowledges transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By sequence numbers: a transaction is acknowledged once the durable seqno has reached its
    /// own.
    Numbers,
    /// By epochs: the durable seqno moves from the end of one epoch to the end of the next. See
    /// `epoch.rs`.
    Epochs,
    /// By flushes, which are numbered over all lanes. See `gwsn.rs`.
    Flushes,
    /// By lanes, each of which assigns its own numbers. See `gsn.rs`.
    Lanes,
}

/// The state of an [`Order`]. `G` is a flush.
#[derive(Debug)]
pub(crate) enum Acknowledgement<G> {
    /// No state other than the durable seqno.
    Numbers,
    Epochs(Epochs),
    Flushes(FlushOrder<G>),
    Lanes(Hardening),
}

impl<G> Acknowledgement<G> {
    /// The state of an incarnation that continues from `base`.
    pub(crate) fn new(order: Order, lanes: usize, base: SeqNo) -> Self {
        match order {
            Order::Numbers => Self::Numbers,
            Order::Epochs => Self::Epochs(Epochs::new(base)),
            Order::Flushes => Self::Flushes(FlushOrder::new(lanes)),
            Order::Lanes => Self::Lanes(Hardening::new(lanes, base)),
        }
    }

    /// The epochs, if transactions are acknowledged by them.
    pub(crate) fn epochs(&self) -> Option<&Epochs> {
        match self {
            Self::Epochs(epochs) => Some(epochs),
            _ => None,
        }
    }

    /// The order of the flushes, if transactions are acknowledged by it.
    pub(crate) fn flushes(&self) -> Option<&FlushOrder<G>> {
        match self {
            Self::Flushes(order) => Some(order),
            _ => None,
        }
    }

    /// The lanes, if each lane acknowledges its own transactions.
    pub(crate) fn lanes(&self) -> Option<&Hardening> {
        match self {
            Self::Lanes(hardening) => Some(hardening),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_has_its_own_state() {
        let of = |order| {
            let state = Acknowledgement::<()>::new(order, 2, SeqNo::new(7));
            let epochs = state.epochs().is_some();
            [epochs, state.flushes().is_some(), state.lanes().is_some()]
        };
        assert_eq!(of(Order::Numbers), [false, false, false]);
        assert_eq!(of(Order::Epochs), [true, false, false]);
        assert_eq!(of(Order::Flushes), [false, true, false]);
        assert_eq!(of(Order::Lanes), [false, false, true]);
    }
}
