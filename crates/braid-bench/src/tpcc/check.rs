//! The consistency conditions (clause 3.3.2), read from an idle engine.

use super::rows::{Account, Fields, Line, Order as OrderRow, Payment, StockLevel};
use super::schema::{self, DISTRICTS, Sizes};
use crate::BenchError;
use crate::driver::Check;
use crate::engines::{KvEngine, Mode, Order, Session, TableId, Wait};
use crate::load::failure;

/// Content of the tables about one customer.
#[derive(Clone, Copy, Default)]
struct Customer {
    balance: i64,
    ytd_payment: i64,
    deliveries: u32,
    /// Sum of the lines of delivered orders.
    delivered: i64,
    /// Sum of payments.
    paid: i64,
    /// Newest order, as recorded for the customer, and among the orders.
    newest: (u32, u32),
}

/// Content of the tables about one district.
#[derive(Default)]
struct District {
    next: u32,
    ytd: i64,
    oldest: u32,
    orders: u64,
    newest_order: u32,
    new_orders: Vec<u32>,
    lines_wanted: u64,
    lines: u64,
    /// Sum of payments in the district.
    paid: i64,
    customers: Vec<Customer>,
    /// First order that violates condition 5, 6 or 7.
    wrong_carrier: Option<String>,
    wrong_lines: Option<String>,
    wrong_delivery: Option<String>,
}

/// Content of the tables about one warehouse.
#[derive(Default)]
struct Warehouse {
    ytd: i64,
    districts: Vec<District>,
    /// Sums in the stock, and sums of the order lines taken from it.
    stock: (u64, u64),
    taken: (u64, u64),
}

/// Reads tables, each from one consistent state.
struct Reader<'a>(Box<dyn Session + 'a>);

impl Reader<'_> {
    fn scan(
        &mut self,
        table: TableId,
        (from, to): (&[u8], &[u8]),
        mut visit: impl FnMut(&[u8], &[u8]) -> Option<()>,
    ) -> Result<(), BenchError> {
        let mut is_wrong = false;
        let read = self.0.transact(Mode::ReadOnly, Wait::Durable, &mut |tx| {
            tx.scan(table, from, to, Order::Ascending, &mut |key, row| {
                is_wrong = visit(key, row).is_none();
                !is_wrong
            })
        });
        read.map_err(failure)?;
        if is_wrong {
            return Err(failure(super::rows::wrong(table)));
        }
        Ok(())
    }

    fn whole(
        &mut self,
        table: TableId,
        visit: impl FnMut(&[u8], &[u8]) -> Option<()>,
    ) -> Result<(), BenchError> {
        // All keys of these tables are below this bound.
        self.scan(table, (&[], &[0xff; 12]), visit)
    }
}

/// Returns the number of New-Orders in the data, including those of the load.
pub(super) fn new_orders(engine: &dyn KvEngine, sizes: Sizes) -> Result<u64, BenchError> {
    let mut sum = 0;
    let mut districts = 0;
    Reader(engine.session()?).whole(schema::DISTRICT_NEXT, |_, row| {
        sum += u64::from(Fields::of(row).u32()?) - 1;
        districts += 1;
        Some(())
    })?;
    let wanted = u32::from(sizes.warehouses) * u32::from(DISTRICTS);
    if districts != wanted {
        return Err(failure(super::rows::wrong(schema::DISTRICT_NEXT)));
    }
    Ok(sum)
}

/// Returns the district of a key that begins with warehouse and district.
fn place<'a>(warehouses: &'a mut [Warehouse], key: &[u8]) -> Option<&'a mut District> {
    let (w, rest) = key.split_first_chunk::<2>()?;
    district(warehouses, u16::from_be_bytes(*w), *rest.first()?)
}

fn district(warehouses: &mut [Warehouse], w: u16, d: u8) -> Option<&mut District> {
    let warehouse = warehouses.get_mut(usize::from(w).checked_sub(1)?)?;
    (warehouse.districts).get_mut(usize::from(d).checked_sub(1)?)
}

fn customer(district: &mut District, c: u16) -> Option<&mut Customer> {
    (district.customers).get_mut(usize::from(c).checked_sub(1)?)
}

fn last_u16(key: &[u8]) -> Option<u16> {
    key.last_chunk().map(|n| u16::from_be_bytes(*n))
}

fn last_u32(key: &[u8]) -> Option<u32> {
    key.last_chunk().map(|n| u32::from_be_bytes(*n))
}

/// Reads all rows that the conditions need.
fn read(engine: &dyn KvEngine, sizes: Sizes) -> Result<Vec<Warehouse>, BenchError> {
    let mut all: Vec<Warehouse> = (0..sizes.warehouses)
        .map(|_| Warehouse {
            districts: (0..DISTRICTS)
                .map(|_| District {
                    customers: vec![Customer::default(); usize::from(sizes.customers)],
                    ..District::default()
                })
                .collect(),
            ..Warehouse::default()
        })
        .collect();
    let mut reader = Reader(engine.session()?);
    reader.whole(schema::WAREHOUSE_YTD, |key, row| {
        let warehouse = all.get_mut(usize::from(last_u16(key)?).checked_sub(1)?)?;
        warehouse.ytd = Fields::of(row).i64()?;
        Some(())
    })?;
    reader.whole(schema::DISTRICT_NEXT, |key, row| {
        place(&mut all, key)?.next = Fields::of(row).u32()?;
        Some(())
    })?;
    reader.whole(schema::OLDEST, |key, row| {
        place(&mut all, key)?.oldest = Fields::of(row).u32()?;
        Some(())
    })?;
    reader.whole(schema::DISTRICT_YTD, |key, row| {
        place(&mut all, key)?.ytd = Fields::of(row).i64()?;
        Some(())
    })?;
    reader.whole(schema::NEW_ORDER, |key, _| {
        let o = last_u32(key)?;
        place(&mut all, key)?.new_orders.push(o);
        Some(())
    })?;
    reader.whole(schema::ACCOUNT, |key, row| {
        let (account, c) = (Account::decode(row)?, last_u16(key)?);
        let customer = customer(place(&mut all, key)?, c)?;
        customer.balance = account.balance;
        customer.ytd_payment = account.ytd_payment;
        customer.deliveries = account.deliveries;
        Some(())
    })?;
    reader.whole(schema::LAST_ORDER, |key, row| {
        let (newest, c) = (Fields::of(row).u32()?, last_u16(key)?);
        customer(place(&mut all, key)?, c)?.newest.0 = newest;
        Some(())
    })?;
    reader.whole(schema::HISTORY, |_, row| {
        let payment = Payment::decode(row)?;
        let cents = i64::from(payment.amount);
        district(&mut all, payment.warehouse, payment.district)?.paid += cents;
        let of = (payment.customer_warehouse, payment.customer_district);
        customer(district(&mut all, of.0, of.1)?, payment.customer)?.paid += cents;
        Some(())
    })?;
    reader.whole(schema::STOCK_LEVEL, |key, row| {
        let (w, level) = (key.first_chunk::<2>()?, StockLevel::decode(row)?);
        let (ytd, orders) = &mut all.get_mut(usize::from(u16::from_be_bytes(*w)) - 1)?.stock;
        *ytd += u64::from(level.ytd);
        *orders += u64::from(level.orders);
        Some(())
    })?;
    for w in 1..=sizes.warehouses {
        for d in 1..=DISTRICTS {
            read_orders(&mut reader, &mut all, sizes, w, d)?;
        }
    }
    Ok(all)
}

/// Reads the orders of a district together with their lines.
fn read_orders(
    reader: &mut Reader<'_>,
    all: &mut [Warehouse],
    sizes: Sizes,
    w: u16,
    d: u8,
) -> Result<(), BenchError> {
    let mut orders: Vec<(u32, OrderRow, u8)> = Vec::new();
    let (from, to) = (schema::order(w, d, 0), schema::order(w, d, u32::MAX));
    reader.scan(schema::ORDER, (&from, &to), |key, row| {
        orders.push((last_u32(key)?, OrderRow::decode(row)?, 0));
        Some(())
    })?;
    let (from, to) = (schema::line(w, d, 0, 0), schema::line(w, d, u32::MAX, 0));
    let mut at = 0;
    let mut lines = 0;
    let (mut wrong_lines, mut wrong_delivery) = (None, None);
    let mut delivered = vec![0; usize::from(sizes.customers) + 1];
    reader.scan(schema::ORDER_LINE, (&from, &to), |key, row| {
        let (o, line) = (last_u32(key.get(..7)?)?, Line::decode(row)?);
        lines += 1;
        if o > u32::from(sizes.customers) {
            let supplier = all.get_mut(usize::from(line.supplier).checked_sub(1)?)?;
            supplier.taken.0 += u64::from(line.quantity);
            supplier.taken.1 += 1;
        }
        while orders.get(at).is_some_and(|(order, ..)| *order < o) {
            at += 1;
        }
        match orders.get_mut(at) {
            Some((order, row, found)) if *order == o => {
                *found += 1;
                if (line.delivered == 0) != (row.carrier == 0) {
                    let text = || format!("a line of order {o} of district {w}/{d}");
                    wrong_delivery.get_or_insert_with(text);
                }
                if line.delivered != 0 {
                    *delivered.get_mut(usize::from(row.customer))? += i64::from(line.amount);
                }
            }
            _ => {
                wrong_lines
                    .get_or_insert_with(|| format!("order {o} of district {w}/{d} is missing"));
            }
        }
        Some(())
    })?;
    let Some(district) = district(all, w, d) else {
        return Ok(());
    };
    for (o, row, found) in &orders {
        if row.lines != *found {
            wrong_lines.get_or_insert_with(|| {
                let wanted = row.lines;
                format!("order {o} of district {w}/{d} has {found} of {wanted} lines")
            });
        }
        let is_new = district.new_orders.binary_search(o).is_ok();
        if is_new != (row.carrier == 0) {
            let text = || format!("order {o} of district {w}/{d}");
            district.wrong_carrier.get_or_insert_with(text);
        }
        district.lines_wanted += u64::from(row.lines);
        if let Some(customer) = customer(district, row.customer) {
            customer.newest.1 = *o;
        }
    }
    for (customer, sum) in district.customers.iter_mut().zip(&delivered[1..]) {
        customer.delivered = *sum;
    }
    district.orders = orders.len() as u64;
    district.newest_order = orders.last().map_or(0, |(o, ..)| *o);
    district.lines = lines;
    (district.wrong_lines, district.wrong_delivery) = (wrong_lines, wrong_delivery);
    Ok(())
}

/// Returns conditions 1 to 10 and 12 of clause 3.3.2. Condition 11 only holds before the first
/// delivery; its general form replaces it. Further conditions cover columns that the standard does
/// not have.
pub(super) fn conditions(engine: &dyn KvEngine, sizes: Sizes) -> Result<Vec<Check>, BenchError> {
    let all = read(engine, sizes)?;
    let in_warehouses = |condition: &str, violation: &dyn Fn(&Warehouse) -> Option<String>| {
        let found = (1..).zip(&all).find_map(|(w, warehouse)| {
            violation(warehouse).map(|text| format!("warehouse {w}: {text}"))
        });
        Check::new(condition, found)
    };
    let in_districts = |condition: &str, violation: &dyn Fn(&District) -> Option<String>| {
        in_warehouses(condition, &|warehouse| {
            (1..).zip(&warehouse.districts).find_map(|(d, district)| {
                violation(district).map(|text| format!("district {d}: {text}"))
            })
        })
    };
    let of_customers = |condition: &str, violation: &dyn Fn(&Customer) -> Option<String>| {
        in_districts(condition, &|district| {
            (1..).zip(&district.customers).find_map(|(c, customer)| {
                violation(customer).map(|text| format!("customer {c}: {text}"))
            })
        })
    };
    let delivered_first = u64::from(u32::from(sizes.customers) - sizes.undelivered());
    Ok(vec![
        in_warehouses("1: W_YTD is the sum of D_YTD", &|w| {
            differ(w.ytd, w.districts.iter().map(|d| d.ytd).sum())
        }),
        in_districts(
            "2: D_NEXT_O_ID follows the newest order and new order",
            &|d| {
                let newest = d.new_orders.last().copied().unwrap_or(d.newest_order);
                differ(d.next, d.newest_order + 1).or_else(|| differ(d.next, newest + 1))
            },
        ),
        in_districts("3: the new orders have no gap", &|d| {
            let (first, last) = (d.new_orders.first()?, d.new_orders.last()?);
            differ(u64::from(last - first) + 1, d.new_orders.len() as u64)
        }),
        in_districts("4: O_OL_CNT sums up to the lines", &|d| {
            differ(d.lines_wanted, d.lines)
        }),
        in_districts("5: an order has a carrier unless it is new", &|d| {
            d.wrong_carrier.clone()
        }),
        in_districts("6: each order has O_OL_CNT lines", &|d| {
            d.wrong_lines.clone()
        }),
        in_districts("7: a line is delivered if its order is", &|d| {
            d.wrong_delivery.clone()
        }),
        in_warehouses("8: W_YTD is the sum of payments", &|w| {
            differ(w.ytd, w.districts.iter().map(|d| d.paid).sum())
        }),
        in_districts("9: D_YTD is the sum of payments", &|d| {
            differ(d.ytd, d.paid)
        }),
        of_customers("10: C_BALANCE is what was delivered less payments", &|c| {
            differ(c.balance, c.delivered - c.paid)
        }),
        in_districts("11: what is not new was delivered", &|d| {
            let deliveries = d.customers.iter().map(|c| u64::from(c.deliveries));
            differ(
                d.orders.saturating_sub(d.new_orders.len() as u64),
                delivered_first + deliveries.sum::<u64>(),
            )
        }),
        of_customers(
            "12: C_BALANCE and C_YTD_PAYMENT are what was delivered",
            &|c| differ(c.balance + c.ytd_payment, c.delivered),
        ),
        of_customers("the newest order of each customer is known", &|c| {
            differ(c.newest.0, c.newest.1)
        }),
        in_districts("the oldest new order of each district is known", &|d| {
            differ(d.oldest, d.new_orders.first().copied().unwrap_or(d.next))
        }),
        in_warehouses("S_YTD and S_ORDER_CNT are those of the lines", &|w| {
            differ(w.stock.0, w.taken.0).or_else(|| differ(w.stock.1, w.taken.1))
        }),
    ])
}

fn differ<T: PartialEq + std::fmt::Display>(found: T, wanted: T) -> Option<String> {
    (found != wanted).then(|| format!("{found} instead of {wanted}"))
}
