//! Delivery (clause 2.7).

use fastrand::Rng;

use super::rows::{Account, DISTRICT_TEXT, Fields, Line, Order, fetch_for_update, now};
use super::schema::{self, DISTRICTS};
use crate::engines::{Stop, Transaction};

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
            let district = schema::district(self.w, d);
            let o = fetch_for_update(tx, schema::OLDEST, &district, |row| Fields::of(row).u32())?;
            // A district may have none left (clause 2.7.4.2).
            let key = schema::order(self.w, d, o);
            if tx.get(schema::NEW_ORDER, &key, &mut |_| ())? {
                tx.put(schema::OLDEST, &district, &(o + 1).to_le_bytes())?;
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
        let mut order = fetch_for_update(tx, schema::ORDER, &key, Order::decode)?;
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
