//! Delivery (clause 2.7).

use fastrand::Rng;

use super::rows::{Account, DISTRICT_TEXT, Line, Order as OrderRow, fetch_for_update, now, wrong};
use super::schema::{self, DISTRICTS};
use crate::engines::{Order, Stop, Transaction};

/// The inputs of a Delivery: the oldest order of each district of a warehouse is delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    w: u16,
    carrier: u8,
}

impl Delivery {
    pub(super) fn draw(rng: &mut Rng, w: u16) -> Self {
        Delivery {
            w,
            carrier: rng.u8(1..=10),
        }
    }

    /// Clause 2.7.4.2: all districts in one transaction.
    pub(super) fn execute(&self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        let delivered = now();
        for d in 1..=DISTRICTS {
            if let Some(o) = oldest(tx, self.w, d)? {
                self.deliver(tx, (d, o), delivered)?;
            }
        }
        Ok(())
    }

    fn deliver(
        &self,
        tx: &mut dyn Transaction,
        (d, o): (u8, u32),
        delivered: u64,
    ) -> Result<(), Stop> {
        let key = schema::order(self.w, d, o);
        tx.delete(schema::NEW_ORDER, &key)?;
        let mut order = fetch_for_update(tx, schema::ORDER, &key, OrderRow::decode)?;
        order.carrier = self.carrier;
        tx.put(schema::ORDER, &key, &order.encode())?;
        let mut total = 0;
        for number in 1..=order.lines {
            let key = schema::line(self.w, d, o, number);
            let (mut line, text) = fetch_for_update(tx, schema::ORDER_LINE, &key, |row| {
                let text: [u8; DISTRICT_TEXT] = *row.last_chunk()?;
                Some((Line::decode(row)?, text))
            })?;
            line.delivered = delivered;
            total += i64::from(line.amount);
            tx.put(schema::ORDER_LINE, &key, &line.with_text(&text))?;
        }
        let customer = schema::customer(self.w, d, order.customer);
        let mut account = fetch_for_update(tx, schema::ACCOUNT, &customer, Account::decode)?;
        account.balance += total;
        account.deliveries += 1;
        tx.put(schema::ACCOUNT, &customer, &account.encode())
    }
}

/// The oldest order of a district that is not delivered.
fn oldest(tx: &mut dyn Transaction, w: u16, d: u8) -> Result<Option<u32>, Stop> {
    let (from, to) = (schema::order(w, d, 0), schema::order(w, d, u32::MAX));
    let mut oldest = None;
    let visit = &mut |key: &[u8], _: &[u8]| {
        oldest = Some(key.last_chunk().map(|o| u32::from_be_bytes(*o)));
        false
    };
    tx.scan(schema::NEW_ORDER, &from, &to, Order::Ascending, visit)?;
    match oldest {
        Some(None) => Err(wrong(schema::NEW_ORDER)),
        Some(found) => Ok(found),
        None => Ok(None),
    }
}
