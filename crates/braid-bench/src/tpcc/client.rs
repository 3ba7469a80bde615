//! A client: its mix of transactions (clause 5.2.3) and its home warehouses.

use fastrand::Rng;

use super::delivery::Delivery;
use super::new_order::NewOrder;
use super::payment::Payment;
use super::queries::{OrderStatus, StockLevel};
use super::schema::{self, DISTRICTS, Sizes};
use crate::driver::{Access, Client, Step};
use crate::engines::{Stop, Transaction};
use crate::ledger::Entry;

/// Kinds of transactions, in the order of reports.
pub(super) const KINDS: [&str; 5] = [
    "new-order",
    "payment",
    "order-status",
    "delivery",
    "stock-level",
];

/// Frequency of each kind in percent; New-Order has the rest.
const SHARES: [(usize, u8); 4] = [(1, 43), (2, 4), (3, 4), (4, 4)];

/// Warehouses of a client.
#[derive(Clone, Debug)]
pub(super) struct Home {
    /// The warehouses, one for each draw in turn.
    warehouses: Vec<u16>,
}

impl Home {
    /// Returns all warehouses if the client roams; otherwise its share of them, or the one that it
    /// shares with other clients.
    pub(super) fn new(sizes: Sizes, thread: usize, threads: usize, roams: bool) -> Self {
        let all = usize::from(sizes.warehouses);
        let warehouses = if roams {
            (1..=sizes.warehouses).collect()
        } else {
            (thread % all..all)
                .step_by(threads.min(all))
                .map(|w| w as u16 + 1)
                .collect()
        };
        Home { warehouses }
    }

    fn draw(&self, rng: &mut Rng) -> u16 {
        self.warehouses[rng.usize(0..self.warehouses.len())]
    }
}

enum Input {
    NewOrder(NewOrder),
    Payment(Payment),
    OrderStatus(OrderStatus),
    Delivery(Delivery),
    StockLevel(StockLevel),
}

pub(super) struct TpccClient<'a> {
    rng: Rng,
    sizes: Sizes,
    home: Home,
    /// Whether all transactions are New-Orders.
    only_new_orders: bool,
    /// Numbers of the driver and of the client, which are the prefix of the keys of its payments,
    /// and the next payment.
    history: (u32, u16, u32),
    /// Counts the acknowledged New-Orders.
    entry: Entry<'a>,
    input: Input,
    numbers: Vec<u16>,
    items: Vec<u32>,
}

impl<'a> TpccClient<'a> {
    pub(super) fn new(
        mut rng: Rng,
        sizes: Sizes,
        home: Home,
        only_new_orders: bool,
        history: (u32, u16, u32),
        entry: Entry<'a>,
    ) -> Self {
        let input = Input::Delivery(Delivery::draw(&mut rng, 1));
        TpccClient {
            rng,
            sizes,
            home,
            only_new_orders,
            history,
            entry,
            input,
            numbers: Vec::new(),
            items: Vec::new(),
        }
    }

    /// Returns the kind of the next transaction.
    fn kind(&mut self) -> usize {
        if self.only_new_orders {
            return 0;
        }
        let mut dice = self.rng.u8(0..100);
        for (kind, share) in SHARES {
            if dice < share {
                return kind;
            }
            dice -= share;
        }
        0
    }
}

impl Client for TpccClient<'_> {
    fn draw(&mut self) -> Option<Step> {
        let kind = self.kind();
        let w = self.home.draw(&mut self.rng);
        let (rng, sizes) = (&mut self.rng, self.sizes);
        self.input = match kind {
            0 => Input::NewOrder(NewOrder::draw(rng, sizes, w)),
            1 => {
                let (run, client, number) = &mut self.history;
                *number += 1;
                let key = schema::history(*run, *client, *number);
                Input::Payment(Payment::draw(rng, sizes, w, key))
            }
            2 => Input::OrderStatus(OrderStatus::draw(rng, sizes, w)),
            3 => Input::Delivery(Delivery::draw(rng, w)),
            _ => {
                let d = (self.history.1 % u16::from(DISTRICTS)) as u8 + 1;
                Input::StockLevel(StockLevel::draw(rng, w, d))
            }
        };
        let only_reads = matches!(self.input, Input::OrderStatus(_) | Input::StockLevel(_));
        Some(Step {
            access: if only_reads {
                Access::Read
            } else {
                Access::Write
            },
            kind,
            token: u64::from(kind == 0),
            bytes: 0,
        })
    }

    fn execute(&mut self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        match &self.input {
            Input::NewOrder(input) => input.execute(tx),
            Input::Payment(input) => input.execute(tx, &mut self.numbers),
            Input::OrderStatus(input) => input.execute(tx, &mut self.numbers),
            Input::Delivery(input) => input.execute(tx),
            Input::StockLevel(input) => input.execute(tx, &mut self.items),
        }
    }

    fn acknowledged(&mut self, token: u64) {
        self.entry.add(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_share_the_warehouses() {
        let sizes = Sizes::new(4, 1_000);
        let home = |thread, threads| Home::new(sizes, thread, threads, false).warehouses;
        assert_eq!((home(0, 2), home(1, 2)), (vec![1, 3], vec![2, 4]));
        assert_eq!(home(0, 1), [1, 2, 3, 4]);
        assert_eq!((home(3, 8), home(7, 8)), (vec![4], vec![4]));
        assert_eq!(Home::new(sizes, 1, 2, true).warehouses, [1, 2, 3, 4]);
    }

    #[test]
    fn the_mix_is_the_standards() {
        let ledger = crate::ledger::Ledger::new(1);
        let sizes = Sizes::new(1, 1_000);
        let home = Home::new(sizes, 0, 1, false);
        let mut client = TpccClient::new(
            Rng::with_seed(9),
            sizes,
            home,
            false,
            (1, 0, 0),
            ledger.entry(0),
        );
        let mut kinds = [0_u32; 5];
        for _ in 0..100_000 {
            let step = client.draw().unwrap();
            kinds[step.kind] += 1;
            assert_eq!(
                step.access == Access::Read,
                step.kind == 2 || step.kind == 4
            );
            assert_eq!(step.token == 1, step.kind == 0);
        }
        for (seen, wanted) in kinds.into_iter().zip([45, 43, 4, 4, 4]) {
            assert!(seen.abs_diff(wanted * 1_000) < 650, "{kinds:?}");
        }
    }
}
