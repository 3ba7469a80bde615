//! The initial data (clause 4.3.3).

use fastrand::Rng;

use super::random::{a_string, item_data, last_name, n_string, name_number_for_load, zip};
use super::rows::{Account, Builder, DISTRICT_TEXT, Line, Order, Payment, StockLevel, now};
use super::schema::{self, DISTRICTS, Sizes};
use crate::BenchError;
use crate::engines::{Stop, Transaction};
use crate::load::Loader;

/// Number of customers, orders or stock rows of one loading transaction.
const BATCH: u32 = 1_000;

/// `W_YTD`, and the payments that it consists of: one of 10.00 for each customer.
const FIRST_PAYMENT: u32 = 1_000;

/// Returns the approximate number of loaded rows, for the progress display and the catalogue.
pub(super) fn rows(sizes: Sizes) -> u64 {
    let districts = u64::from(sizes.warehouses) * u64::from(DISTRICTS);
    let customers = districts * u64::from(sizes.customers);
    u64::from(sizes.items) * (1 + u64::from(sizes.warehouses)) + customers * 2
}

/// Loads all tables.
pub(super) fn load(sizes: Sizes, seed: u64, loader: &mut Loader<'_>) -> Result<(), BenchError> {
    let mut rng = Rng::with_seed(seed);
    for items in batches(sizes.items) {
        loader.batch(items.len() as u64, &mut |tx| {
            items.clone().try_for_each(|i| put_item(tx, &mut rng, i))
        })?;
    }
    for w in 1..=sizes.warehouses {
        loader.batch(0, &mut |tx| put_warehouse(tx, &mut rng, sizes, w))?;
        for items in batches(sizes.items) {
            loader.batch(items.len() as u64, &mut |tx| {
                (items.clone()).try_for_each(|i| put_stock(tx, &mut rng, w, i))
            })?;
        }
        for d in 1..=DISTRICTS {
            load_district(sizes, w, d, &mut rng, loader)?;
        }
    }
    Ok(())
}

/// Returns the numbers from 1 to `last` in batches.
fn batches(last: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
    (1..=last)
        .step_by(BATCH as usize)
        .map(move |from| from..(from + BATCH).min(last + 1))
}

fn put_item(tx: &mut dyn Transaction, rng: &mut Rng, i: u32) -> Result<(), Stop> {
    let row = Builder::default()
        .number(rng.u16(1..=10_000).to_le_bytes())
        .number(rng.u16(100..=10_000).to_le_bytes())
        .text(&a_string(rng, 14..=24))
        .text(&item_data(rng));
    tx.put(schema::ITEM, &schema::item(i), &row.0)
}

/// Returns tax, name and address of a warehouse or a district.
fn place(rng: &mut Rng) -> Vec<u8> {
    let row = Builder::default().number(rng.u16(0..=2_000).to_le_bytes());
    let row = row.text(&a_string(rng, 6..=10));
    address(row, rng).0
}

fn address(row: Builder, rng: &mut Rng) -> Builder {
    let row = row
        .text(&a_string(rng, 10..=20))
        .text(&a_string(rng, 10..=20));
    row.text(&a_string(rng, 10..=20))
        .text(&a_string(rng, 2..=2))
        .text(&zip(rng))
}

/// Writes a warehouse and its districts, whose sums agree with their payments.
fn put_warehouse(
    tx: &mut dyn Transaction,
    rng: &mut Rng,
    sizes: Sizes,
    w: u16,
) -> Result<(), Stop> {
    let ytd = i64::from(FIRST_PAYMENT) * i64::from(sizes.customers);
    let key = schema::warehouse(w);
    tx.put(schema::WAREHOUSE, &key, &place(rng))?;
    let all = ytd * i64::from(DISTRICTS);
    tx.put(schema::WAREHOUSE_YTD, &key, &all.to_le_bytes())?;
    for d in 1..=DISTRICTS {
        let key = schema::district(w, d);
        let next = u32::from(sizes.customers) + 1;
        tx.put(schema::DISTRICT, &key, &place(rng))?;
        tx.put(schema::DISTRICT_NEXT, &key, &next.to_le_bytes())?;
        tx.put(schema::DISTRICT_YTD, &key, &ytd.to_le_bytes())?;
        let oldest = next - sizes.undelivered();
        tx.put(schema::OLDEST, &key, &oldest.to_le_bytes())?;
    }
    Ok(())
}

fn put_stock(tx: &mut dyn Transaction, rng: &mut Rng, w: u16, i: u32) -> Result<(), Stop> {
    let mut row = Vec::with_capacity(usize::from(DISTRICTS) * DISTRICT_TEXT + 50);
    for _ in 0..DISTRICTS {
        row.extend(a_string(rng, DISTRICT_TEXT..=DISTRICT_TEXT));
    }
    row.extend(item_data(rng));
    let level = StockLevel {
        quantity: rng.u16(10..=100),
        ytd: 0,
        orders: 0,
        remote: 0,
    };
    let key = schema::stock(w, i);
    tx.put(schema::STOCK, &key, &row)?;
    tx.put(schema::STOCK_LEVEL, &key, &level.encode())
}

/// Loads the customers of a district with a payment each, and the orders, one for each customer.
fn load_district(
    sizes: Sizes,
    w: u16,
    d: u8,
    rng: &mut Rng,
    loader: &mut Loader<'_>,
) -> Result<(), BenchError> {
    let last = u32::from(sizes.customers);
    for customers in batches(last) {
        loader.batch(customers.len() as u64, &mut |tx| {
            (customers.clone()).try_for_each(|c| put_customer(tx, rng, sizes, (w, d, c as u16)))
        })?;
    }
    // O_C_ID is a permutation of the customers.
    let mut by: Vec<u16> = (1..=sizes.customers).collect();
    rng.shuffle(&mut by);
    for orders in batches(last) {
        loader.batch(orders.len() as u64, &mut |tx| {
            orders.clone().try_for_each(|o| {
                let is_delivered = o <= last - sizes.undelivered();
                put_order(tx, rng, sizes, (w, d, o), by[o as usize - 1], is_delivered)
            })
        })?;
    }
    Ok(())
}

fn put_customer(
    tx: &mut dyn Transaction,
    rng: &mut Rng,
    sizes: Sizes,
    (w, d, c): (u16, u8, u16),
) -> Result<(), Stop> {
    // Each last name once, then by NURand (clause 4.3.3.1).
    let number = if c <= sizes.names() {
        c - 1
    } else {
        name_number_for_load(rng, sizes.names())
    };
    let last = last_name(number);
    let first = a_string(rng, 8..=16);
    let has_bad_credit = rng.u8(0..10) == 0;
    let row = Builder::default()
        .number(rng.u16(0..=5_000).to_le_bytes())
        .number([u8::from(has_bad_credit)])
        .number(5_000_000_i64.to_le_bytes())
        .number(now().to_le_bytes())
        .text(last.as_bytes())
        .text(&first)
        .text(b"OE");
    let row = address(row, rng).text(&n_string(rng, 16));
    let key = schema::customer(w, d, c);
    tx.put(schema::CUSTOMER, &key, &row.0)?;
    let account = Account {
        balance: -i64::from(FIRST_PAYMENT),
        ytd_payment: i64::from(FIRST_PAYMENT),
        payments: 1,
        deliveries: 0,
    };
    tx.put(schema::ACCOUNT, &key, &account.encode())?;
    tx.put(schema::CUSTOMER_DATA, &key, &a_string(rng, 300..=500))?;
    let name = schema::customer_name(w, d, last.as_bytes(), &first, c);
    tx.put(schema::CUSTOMER_NAME, &name, &[])?;
    let payment = Payment {
        customer: c,
        customer_district: d,
        customer_warehouse: w,
        district: d,
        warehouse: w,
        date: now(),
        amount: FIRST_PAYMENT,
    };
    let mut row = payment.encode().to_vec();
    row.extend(a_string(rng, 12..=24));
    // Run 0 is the load; each district is one of its clients.
    let client = (w - 1) * u16::from(DISTRICTS) + u16::from(d);
    let key = schema::history(0, client, u32::from(c));
    tx.put(schema::HISTORY, &key, &row)
}

fn put_order(
    tx: &mut dyn Transaction,
    rng: &mut Rng,
    sizes: Sizes,
    (w, d, o): (u16, u8, u32),
    customer: u16,
    is_delivered: bool,
) -> Result<(), Stop> {
    let entered = now();
    let order = Order {
        customer,
        entered,
        carrier: if is_delivered { rng.u8(1..=10) } else { 0 },
        lines: rng.u8(5..=15),
        all_local: 1,
    };
    let key = schema::order(w, d, o);
    tx.put(schema::ORDER, &key, &order.encode())?;
    let by = schema::customer(w, d, customer);
    tx.put(schema::LAST_ORDER, &by, &o.to_le_bytes())?;
    if !is_delivered {
        tx.put(schema::NEW_ORDER, &key, &[])?;
    }
    for number in 1..=order.lines {
        let line = Line {
            item: rng.u32(1..=sizes.items),
            supplier: w,
            delivered: if is_delivered { entered } else { 0 },
            quantity: 5,
            amount: if is_delivered {
                0
            } else {
                rng.i32(1..=999_999)
            },
        };
        let mut text = [0; DISTRICT_TEXT];
        text.copy_from_slice(&a_string(rng, DISTRICT_TEXT..=DISTRICT_TEXT));
        let key = schema::line(w, d, o, number);
        tx.put(schema::ORDER_LINE, &key, &line.with_text(&text))?;
    }
    Ok(())
}
