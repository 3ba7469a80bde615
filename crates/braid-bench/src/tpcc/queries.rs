//! The read-only transactions: Order-Status (clause 2.6) and Stock-Level (clause 2.8).

use std::hint::black_box;

use fastrand::Rng;

use super::payment::Who;
use super::rows::{
    Account, Fields, Line, Order as OrderRow, StockLevel as Level, fetch, fetch_if_there, prefetch,
};
use super::schema::{self, DISTRICTS, Sizes};
use crate::engines::{Order, Stop, Transaction};

/// The inputs of an Order-Status.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderStatus {
    w: u16,
    d: u8,
    who: Who,
}

impl OrderStatus {
    pub(super) fn draw(rng: &mut Rng, sizes: Sizes, w: u16) -> Self {
        OrderStatus {
            w,
            d: rng.u8(1..=DISTRICTS),
            who: Who::draw(rng, sizes),
        }
    }

    /// Clause 2.6.2.2: a customer's newest order and its lines.
    pub(super) fn execute(
        &self,
        tx: &mut dyn Transaction,
        found: &mut Vec<u16>,
    ) -> Result<(), Stop> {
        let OrderStatus { w, d, who } = *self;
        let customer = schema::customer(w, d, who.find(tx, (w, d), found)?);
        fetch(tx, schema::CUSTOMER, &customer, |row| {
            black_box(row.len());
            Some(())
        })?;
        black_box(fetch(tx, schema::ACCOUNT, &customer, Account::decode)?);
        let newest = |row: &[u8]| Fields::of(row).u32();
        let Some(o) = fetch_if_there(tx, schema::LAST_ORDER, &customer, newest)? else {
            return Ok(());
        };
        let key = schema::order(w, d, o);
        black_box(fetch(tx, schema::ORDER, &key, OrderRow::decode)?);
        let (from, to) = (schema::line(w, d, o, 0), schema::line(w, d, o + 1, 0));
        let visit = &mut |_: &[u8], row: &[u8]| {
            black_box(Line::decode(row));
            true
        };
        tx.scan(schema::ORDER_LINE, &from, &to, Order::Ascending, visit)
    }
}

/// The inputs of a Stock-Level.
#[derive(Clone, Copy, Debug)]
pub(super) struct StockLevel {
    w: u16,
    d: u8,
    threshold: u16,
}

impl StockLevel {
    /// A client keeps its district (clause 2.8.1.1).
    pub(super) fn draw(rng: &mut Rng, w: u16, d: u8) -> Self {
        StockLevel {
            w,
            d,
            threshold: rng.u16(10..=20),
        }
    }

    /// Clause 2.8.2.2: counts the scarce items of the last 20 orders. `items` is a reused buffer.
    pub(super) fn execute(
        &self,
        tx: &mut dyn Transaction,
        items: &mut Vec<u32>,
    ) -> Result<(), Stop> {
        let StockLevel { w, d, threshold } = *self;
        let district = schema::district(w, d);
        let next = fetch(tx, schema::DISTRICT_NEXT, &district, |row| {
            Fields::of(row).u32()
        })?;
        let first = next.saturating_sub(20);
        let (from, to) = (schema::line(w, d, first, 0), schema::line(w, d, next, 0));
        items.clear();
        let visit = &mut |_: &[u8], row: &[u8]| {
            items.extend(Line::decode(row).map(|line| line.item));
            true
        };
        tx.scan(schema::ORDER_LINE, &from, &to, Order::Ascending, visit)?;
        items.sort_unstable();
        items.dedup();
        let mut scarce = 0;
        // As many as stay in the caches until they are read.
        for items in items.chunks(64) {
            let keys = items.iter().map(|&item| schema::stock(w, item));
            prefetch(tx, schema::STOCK_LEVEL, keys.clone())?;
            for key in keys {
                let level = fetch(tx, schema::STOCK_LEVEL, &key, Level::decode)?;
                scarce += u32::from(level.quantity < threshold);
            }
        }
        black_box(scarce);
        Ok(())
    }
}
