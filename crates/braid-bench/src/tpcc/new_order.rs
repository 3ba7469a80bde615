//! New-Order (clause 2.4).

use std::hint::black_box;

use fastrand::Rng;

use super::random::{self, ORIGINAL};
use super::rows::{
    DISTRICT_TEXT, Fields, Line, Order, StockLevel, fetch, fetch_for_update, fetch_if_there, now,
    prefetch,
};
use super::schema::{self, DISTRICTS, Sizes};
use crate::engines::{Stop, Transaction};

/// Maximum number of lines of an order.
const MAX_LINES: usize = 15;

/// The inputs of a New-Order.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewOrder {
    w: u16,
    pub(super) d: u8,
    c: u16,
    lines: u8,
    wanted: [Wanted; MAX_LINES],
}

#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    item: u32,
    supplier: u16,
    quantity: u8,
}

impl NewOrder {
    /// Draws the inputs (clause 2.4.1).
    pub(super) fn draw(rng: &mut Rng, sizes: Sizes, w: u16) -> Self {
        let lines = rng.u8(5..=MAX_LINES as u8);
        let mut order = NewOrder {
            w,
            d: rng.u8(1..=DISTRICTS),
            c: random::customer(rng, sizes.customers),
            lines,
            wanted: Default::default(),
        };
        // One of a hundred ends with an unused item, which rolls it back (clauses 2.4.1.4 and
        // 2.4.1.5).
        let fails = rng.u8(1..=100) == 1;
        let last = usize::from(lines) - 1;
        for (i, wanted) in order.wanted[..=last].iter_mut().enumerate() {
            *wanted = Wanted {
                item: if fails && i == last {
                    sizes.items + 1
                } else {
                    random::item(rng, sizes.items)
                },
                supplier: if sizes.warehouses > 1 && rng.u8(1..=100) == 1 {
                    super::other_warehouse(rng, sizes, w)
                } else {
                    w
                },
                quantity: rng.u8(1..=10),
            };
        }
        order
    }

    /// Returns whether the transaction will be rolled back.
    #[cfg(test)]
    pub(super) fn fails(&self, sizes: Sizes) -> bool {
        self.wanted[usize::from(self.lines) - 1].item > sizes.items
    }

    /// Returns whether a line is of another warehouse.
    pub(super) fn is_remote(&self) -> bool {
        self.wanted().iter().any(|wanted| wanted.supplier != self.w)
    }

    fn wanted(&self) -> &[Wanted] {
        &self.wanted[..usize::from(self.lines)]
    }

    /// Clause 2.4.2.2.
    pub(super) fn execute(&self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        let (w, d) = (self.w, self.d);
        let reads_by_message = tx.reads_by_message();
        if reads_by_message {
            let district = [schema::district(w, d)];
            prefetch(tx, schema::WAREHOUSE, [schema::warehouse(w)])?;
            prefetch(tx, schema::DISTRICT, district)?;
            prefetch(tx, schema::DISTRICT_NEXT, district)?;
            prefetch(tx, schema::CUSTOMER, [schema::customer(w, d, self.c)])?;
            self.prefetch_lines(tx)?;
        }
        let tax = |row: &[u8]| Fields::of(row).u16().map(i64::from);
        let warehouse_tax = fetch(tx, schema::WAREHOUSE, &schema::warehouse(w), tax)?;
        let district = schema::district(w, d);
        let district_tax = fetch(tx, schema::DISTRICT, &district, tax)?;
        let o = fetch_for_update(tx, schema::DISTRICT_NEXT, &district, |row| {
            Fields::of(row).u32()
        })?;
        tx.put(schema::DISTRICT_NEXT, &district, &(o + 1).to_le_bytes())?;
        let customer = schema::customer(w, d, self.c);
        let discount = fetch(tx, schema::CUSTOMER, &customer, |row| {
            let mut fields = Fields::of(row);
            let discount = fields.u16()?;
            black_box((fields.u8()?, fields.i64()?, fields.u64()?, fields.text()?));
            Some(i64::from(discount))
        })?;

        let key = schema::order(w, d, o);
        let order = Order {
            customer: self.c,
            entered: now(),
            carrier: 0,
            lines: self.lines,
            all_local: u8::from(!self.is_remote()),
        };
        tx.put(schema::ORDER, &key, &order.encode())?;
        tx.put(schema::LAST_ORDER, &customer, &o.to_le_bytes())?;
        tx.put(schema::NEW_ORDER, &key, &[])?;
        if !reads_by_message {
            self.prefetch_lines(tx)?;
        }
        let mut total = 0;
        for (number, wanted) in (1..).zip(self.wanted()) {
            total += self.line(tx, o, number, wanted)?;
        }
        // The total amount is displayed, not stored.
        black_box(total * (10_000 - discount) * (10_000 + warehouse_tax + district_tax));
        Ok(())
    }

    /// Announces the rows of the lines.
    fn prefetch_lines(&self, tx: &mut dyn Transaction) -> Result<(), Stop> {
        let wanted = self.wanted().iter();
        prefetch(
            tx,
            schema::ITEM,
            wanted.clone().map(|wanted| schema::item(wanted.item)),
        )?;
        let stock = wanted.map(|wanted| schema::stock(wanted.supplier, wanted.item));
        prefetch(tx, schema::STOCK, stock.clone())?;
        prefetch(tx, schema::STOCK_LEVEL, stock)
    }

    /// Processes one line; returns its amount in cents.
    fn line(
        &self,
        tx: &mut dyn Transaction,
        o: u32,
        number: u8,
        wanted: &Wanted,
    ) -> Result<i64, Stop> {
        let item = fetch_if_there(tx, schema::ITEM, &schema::item(wanted.item), |row| {
            let mut fields = Fields::of(row);
            let (_image, price) = (fields.u16()?, fields.u16()?);
            black_box(fields.text()?);
            Some((price, is_original(fields.text()?)))
        })?;
        let Some((price, item_is_original)) = item else {
            return Err(Stop::RolledBack);
        };
        let key = schema::stock(wanted.supplier, wanted.item);
        let mut text = [0; DISTRICT_TEXT];
        let stock_is_original = fetch(tx, schema::STOCK, &key, |row| {
            let (texts, data) = row.split_at_checked(usize::from(DISTRICTS) * DISTRICT_TEXT)?;
            let at = usize::from(self.d - 1) * DISTRICT_TEXT;
            text.copy_from_slice(&texts[at..at + DISTRICT_TEXT]);
            Some(is_original(data))
        })?;
        // Whether the item is brand or generic is displayed, not stored.
        black_box(item_is_original && stock_is_original);
        let mut level = fetch_for_update(tx, schema::STOCK_LEVEL, &key, StockLevel::decode)?;
        let quantity = u16::from(wanted.quantity);
        level.quantity = if level.quantity >= quantity + 10 {
            level.quantity - quantity
        } else {
            level.quantity + 91 - quantity
        };
        level.ytd += u32::from(quantity);
        level.orders += 1;
        level.remote += u32::from(wanted.supplier != self.w);
        tx.put(schema::STOCK_LEVEL, &key, &level.encode())?;
        let amount = i32::from(wanted.quantity) * i32::from(price);
        let line = Line {
            item: wanted.item,
            supplier: wanted.supplier,
            delivered: 0,
            quantity: wanted.quantity,
            amount,
        };
        let key = schema::line(self.w, self.d, o, number);
        tx.put(schema::ORDER_LINE, &key, &line.with_text(&text))?;
        Ok(i64::from(amount))
    }
}

fn is_original(data: &[u8]) -> bool {
    data.windows(ORIGINAL.len()).any(|part| part == ORIGINAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_have_the_standards_shares() {
        let mut rng = Rng::with_seed(5);
        let sizes = Sizes::new(4, Sizes::ITEMS);
        let (mut failing, mut remote_lines, mut lines) = (0, 0, 0);
        for _ in 0..100_000 {
            let order = NewOrder::draw(&mut rng, sizes, 2);
            assert!((5..=15).contains(&order.lines) && (1..=10).contains(&order.d));
            failing += u32::from(order.fails(sizes));
            lines += order.wanted().len();
            for wanted in order.wanted() {
                assert!((1..=10).contains(&wanted.quantity));
                assert!((1..=4).contains(&wanted.supplier));
                remote_lines += usize::from(wanted.supplier != 2);
            }
        }
        // Four standard deviations of 1 % of this many draws are 126 and 400.
        assert!((874..1_126).contains(&failing), "{failing} are rolled back");
        assert!((985_000..1_015_000).contains(&lines), "{lines} lines");
        assert!(
            (9_600..10_400).contains(&remote_lines),
            "{remote_lines} remote lines"
        );
    }

    #[test]
    fn one_warehouse_has_no_other() {
        let mut rng = Rng::with_seed(6);
        let sizes = Sizes::new(1, 1_000);
        assert!((0..1_000).all(|_| !NewOrder::draw(&mut rng, sizes, 1).is_remote()));
    }
}
