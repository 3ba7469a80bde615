//! Payment (clause 2.5), and the choice of a customer.

use std::hint::black_box;

use fastrand::Rng;

use super::random;
use super::rows::{self, Account, Fields, fetch, fetch_for_update, now};
use super::schema::{self, DISTRICTS, Sizes};
use crate::engines::{Order, Stop, Transaction};

/// Maximum size of `C_DATA`, in bytes.
const MAX_DATA: usize = 500;

/// A customer, by number or by last name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Who {
    Number(u16),
    /// The number of a last name.
    Named(u16),
}

impl Who {
    /// Draws a customer, 60 % by last name (clauses 2.5.1.2 and 2.6.1.2).
    pub(super) fn draw(rng: &mut Rng, sizes: Sizes) -> Self {
        if rng.u8(1..=100) <= 60 {
            Who::Named(random::name_number(rng, sizes.names()))
        } else {
            Who::Number(random::customer(rng, sizes.customers))
        }
    }

    /// Returns the customer's number: of those with the last name, sorted by first name, the one in
    /// the middle, rounded up (clause 2.5.2.2). `found` is a reused buffer.
    pub(super) fn find(
        self,
        tx: &mut dyn Transaction,
        (w, d): (u16, u8),
        found: &mut Vec<u16>,
    ) -> Result<u16, Stop> {
        let number = match self {
            Who::Number(c) => return Ok(c),
            Who::Named(number) => number,
        };
        let last = random::last_name(number);
        let (from, to) = schema::customers_named(w, d, last.as_bytes());
        found.clear();
        let visit = &mut |key: &[u8], _: &[u8]| {
            if let Some(&c) = key.last_chunk() {
                found.push(u16::from_be_bytes(c));
            }
            true
        };
        tx.scan(schema::CUSTOMER_NAME, &from, &to, Order::Ascending, visit)?;
        let middle = found.len().div_ceil(2).max(1) - 1;
        (found.get(middle).copied()).ok_or_else(|| rows::wrong(schema::CUSTOMER_NAME))
    }
}

/// The inputs of a Payment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payment {
    w: u16,
    d: u8,
    customer_w: u16,
    customer_d: u8,
    who: Who,
    /// Amount in cents.
    amount: u32,
    /// The key of its history row.
    history: [u8; 10],
}

impl Payment {
    /// Draws the inputs (clause 2.5.1): 15 % are for customers of another warehouse.
    pub(super) fn draw(rng: &mut Rng, sizes: Sizes, w: u16, history: [u8; 10]) -> Self {
        let d = rng.u8(1..=DISTRICTS);
        let (customer_w, customer_d) = if sizes.warehouses > 1 && rng.u8(1..=100) > 85 {
            let other = super::other_warehouse(rng, sizes, w);
            (other, rng.u8(1..=DISTRICTS))
        } else {
            (w, d)
        };
        Payment {
            w,
            d,
            customer_w,
            customer_d,
            who: Who::draw(rng, sizes),
            amount: rng.u32(100..=500_000),
            history,
        }
    }

    /// Clause 2.5.2.2. The warehouse, which all of its payments change, is last.
    pub(super) fn execute(
        &self,
        tx: &mut dyn Transaction,
        found: &mut Vec<u16>,
    ) -> Result<(), Stop> {
        let Payment { w, d, .. } = *self;
        if tx.reads_by_message() {
            self.announce(tx)?;
        }
        let mut text = Vec::with_capacity(24);
        for (table, key) in [
            (schema::WAREHOUSE, &schema::warehouse(w)[..]),
            (schema::DISTRICT, &schema::district(w, d)[..]),
        ] {
            fetch(tx, table, key, |row| {
                let mut fields = Fields::of(row);
                black_box(fields.u16()?);
                if !text.is_empty() {
                    text.extend_from_slice(b"    ");
                }
                text.extend_from_slice(fields.text()?);
                black_box((fields.text()?, fields.text()?, fields.text()?));
                Some(())
            })?;
        }
        let place = (self.customer_w, self.customer_d);
        let c = self.who.find(tx, place, found)?;
        let customer = schema::customer(place.0, place.1, c);
        let has_bad_credit = fetch(tx, schema::CUSTOMER, &customer, |row| {
            let mut fields = Fields::of(row);
            black_box(fields.u16()?);
            Some(fields.u8()? == 1)
        })?;
        let mut account = fetch_for_update(tx, schema::ACCOUNT, &customer, Account::decode)?;
        account.balance -= i64::from(self.amount);
        account.ytd_payment += i64::from(self.amount);
        account.payments += 1;
        tx.put(schema::ACCOUNT, &customer, &account.encode())?;
        if has_bad_credit {
            self.note(tx, c, &customer)?;
        }
        let payment = rows::Payment {
            customer: c,
            customer_district: place.1,
            customer_warehouse: place.0,
            district: d,
            warehouse: w,
            date: now(),
            amount: self.amount,
        };
        let row = [&payment.encode()[..], &text].concat();
        tx.put(schema::HISTORY, &self.history, &row)?;
        let cents = i64::from(self.amount);
        rows::add(tx, schema::DISTRICT_YTD, &schema::district(w, d), cents)?;
        rows::add(tx, schema::WAREHOUSE_YTD, &schema::warehouse(w), cents)
    }

    /// Announces the rows whose keys are known.
    fn announce(&self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        let (warehouse, district) = (schema::warehouse(self.w), schema::district(self.w, self.d));
        for (table, key) in [
            (schema::WAREHOUSE, &warehouse[..]),
            (schema::DISTRICT, &district),
            (schema::DISTRICT_YTD, &district),
            (schema::WAREHOUSE_YTD, &warehouse),
        ] {
            tx.prefetch(table, &[key])?;
        }
        if let Who::Number(c) = self.who {
            let customer = schema::customer(self.customer_w, self.customer_d, c);
            tx.prefetch(schema::CUSTOMER, &[&customer])?;
            tx.prefetch(schema::ACCOUNT, &[&customer])?;
        }
        Ok(())
    }

    /// Inserts a note at the start of the data of a customer with bad credit.
    fn note(&self, tx: &mut dyn Transaction, c: u16, customer: &[u8]) -> Result<(), Stop> {
        let mut data = format!(
            "{c} {} {} {} {} {:.2} ",
            self.customer_d,
            self.customer_w,
            self.d,
            self.w,
            f64::from(self.amount) / 100.0
        )
        .into_bytes();
        fetch_for_update(tx, schema::CUSTOMER_DATA, customer, |old| {
            data.extend_from_slice(&old[..old.len().min(MAX_DATA - data.len())]);
            Some(())
        })?;
        tx.put(schema::CUSTOMER_DATA, customer, &data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_have_the_standards_shares() {
        let mut rng = Rng::with_seed(8);
        let sizes = Sizes::new(4, Sizes::ITEMS);
        let (mut remote, mut named) = (0, 0);
        for _ in 0..100_000 {
            let payment = Payment::draw(&mut rng, sizes, 3, [0; 10]);
            assert!((100..=500_000).contains(&payment.amount));
            assert!((1..=4).contains(&payment.customer_w));
            if payment.customer_w == 3 {
                assert_eq!(payment.customer_d, payment.d);
            }
            remote += u32::from(payment.customer_w != 3);
            named += u32::from(matches!(payment.who, Who::Named(_)));
        }
        // Four standard deviations are 452 and 620.
        assert!((14_548..15_452).contains(&remote), "{remote} remote");
        assert!((59_380..60_620).contains(&named), "{named} by name");
    }
}
