//! The tables and their keys.
//!
//! A wide row of the standard that changes in only a few bytes is split, as clause 1.4.5 permits:
//! frequently changing columns form a row of their own. So an update logs few bytes, and
//! transactions that change different columns do not conflict. Keys are big-endian, so that they
//! sort in the order of their numbers.

use crate::engines::TableId;

/// Name, address and tax of a warehouse; never changed.
pub(super) const WAREHOUSE: TableId = 0;
/// `W_YTD`.
pub(super) const WAREHOUSE_YTD: TableId = 1;
/// Name, address and tax of a district; never changed.
pub(super) const DISTRICT: TableId = 2;
/// `D_NEXT_O_ID`, which New-Order changes.
pub(super) const DISTRICT_NEXT: TableId = 3;
/// `D_YTD`, which Payment changes.
pub(super) const DISTRICT_YTD: TableId = 4;
/// Name, address and credit of a customer; never changed.
pub(super) const CUSTOMER: TableId = 5;
/// Balance and counts of a customer.
pub(super) const ACCOUNT: TableId = 6;
/// `C_DATA`, which payments of customers with bad credit change.
pub(super) const CUSTOMER_DATA: TableId = 7;
/// Customers by last and first name.
pub(super) const CUSTOMER_NAME: TableId = 8;
/// Payments.
pub(super) const HISTORY: TableId = 9;
/// Undelivered orders.
pub(super) const NEW_ORDER: TableId = 10;
/// Orders.
pub(super) const ORDER: TableId = 11;
/// The newest order of each customer, in place of an index on the orders' customers.
pub(super) const LAST_ORDER: TableId = 12;
/// The lines of orders.
pub(super) const ORDER_LINE: TableId = 13;
/// Items.
pub(super) const ITEM: TableId = 14;
/// District texts and data of stock; never changed.
pub(super) const STOCK: TableId = 15;
/// Quantity and counts of stock.
pub(super) const STOCK_LEVEL: TableId = 16;
/// The oldest undelivered order of each district, which replaces a search in [`NEW_ORDER`]: the
/// numbers have no gap (condition 3 of clause 3.3.2).
pub(super) const OLDEST: TableId = 17;
/// Description of the loaded data.
pub(super) const CATALOGUE: TableId = 18;

/// Names of the tables before the catalogue.
pub(super) const NAMES: [&str; 18] = [
    "warehouse",
    "warehouse-ytd",
    "district",
    "district-next",
    "district-ytd",
    "customer",
    "account",
    "customer-data",
    "customer-name",
    "history",
    "new-order",
    "order",
    "last-order",
    "order-line",
    "item",
    "stock",
    "stock-level",
    "oldest",
];

/// Number of districts of a warehouse (clause 1.2.1).
pub(super) const DISTRICTS: u8 = 10;

/// Sizes of the tables: the standard's numbers for 100,000 items; fewer items shrink all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) warehouses: u16,
    pub(super) items: u32,
    /// Number of customers, and of initial orders, of a district.
    pub(super) customers: u16,
}

impl Sizes {
    /// Number of items in the standard.
    pub(super) const ITEMS: u32 = 100_000;

    pub(super) fn new(warehouses: u16, items: u32) -> Self {
        Sizes {
            warehouses,
            items,
            customers: (items * 3 / 100).clamp(10, 3_000) as u16,
        }
    }

    /// Number of a district's initial orders that are undelivered, which are the newest (clause
    /// 4.3.3.1).
    pub(super) fn undelivered(self) -> u32 {
        u32::from(self.customers) * 3 / 10
    }

    /// Number of last names in use.
    pub(super) fn names(self) -> u16 {
        self.customers.min(super::random::LAST_NAMES)
    }
}

macro_rules! key {
    ($($(#[$doc:meta])* $name:ident($($field:ident: $type:ty),+) -> $len:literal;)+) => {$(
        $(#[$doc])*
        #[inline]
        pub(super) fn $name($($field: $type),+) -> [u8; $len] {
            let mut key = [0; $len];
            let mut at = 0;
            $(
                let bytes = $field.to_be_bytes();
                key[at..at + bytes.len()].copy_from_slice(&bytes);
                at += bytes.len();
            )+
            debug_assert_eq!(at, $len);
            key
        }
    )+};
}

key! {
    /// Of warehouse tables.
    warehouse(w: u16) -> 2;
    /// Of district tables.
    district(w: u16, d: u8) -> 3;
    /// Of customer tables.
    customer(w: u16, d: u8, c: u16) -> 5;
    /// Of orders and new orders.
    order(w: u16, d: u8, o: u32) -> 7;
    /// Of order lines.
    line(w: u16, d: u8, o: u32, number: u8) -> 8;
    /// Of items.
    item(i: u32) -> 4;
    /// Of stock tables.
    stock(w: u16, i: u32) -> 6;
    /// Of history, which has no key in the standard: the run, the client, and a number.
    history(run: u32, client: u16, number: u32) -> 10;
}

/// Size of a name in the index.
const NAME: usize = 16;

/// Size of a key of [`CUSTOMER_NAME`].
pub(super) const NAME_KEY: usize = 3 + NAME + NAME + 2;

/// Key of [`CUSTOMER_NAME`]: ordered by last name, first name and number.
pub(super) fn customer_name(w: u16, d: u8, last: &[u8], first: &[u8], c: u16) -> [u8; NAME_KEY] {
    let mut key = [0; NAME_KEY];
    key[..3].copy_from_slice(&district(w, d));
    key[3..3 + last.len()].copy_from_slice(last);
    key[3 + NAME..3 + NAME + first.len()].copy_from_slice(first);
    key[NAME_KEY - 2..].copy_from_slice(&c.to_be_bytes());
    key
}

/// Range of [`CUSTOMER_NAME`] with one last name.
pub(super) fn customers_named(w: u16, d: u8, last: &[u8]) -> ([u8; NAME_KEY], [u8; NAME_KEY]) {
    let from = customer_name(w, d, last, &[], 0);
    let to = customer_name(w, d, last, &[0xff; NAME], u16::MAX);
    (from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_their_numbers() {
        assert!(line(1, 2, 255, 15) < line(1, 2, 256, 1));
        assert!(line(1, 2, 9, 15) < line(1, 3, 1, 1));
        assert!(stock(1, u32::MAX) < stock(2, 1));
        assert!(order(1, 10, 1) < order(2, 1, 1));
    }

    #[test]
    fn one_last_name_is_one_range() {
        let (from, to) = customers_named(1, 2, b"BARBAR");
        for (last, inside) in [
            (&b"BARBAR"[..], true),
            (b"BARBARBAR", false),
            (b"BARBA", false),
        ] {
            let key = customer_name(1, 2, last, b"zzzzzzzzzzzzzzzz", 3_000);
            assert_eq!((from..to).contains(&key), inside);
        }
    }

    #[test]
    fn small_databases_keep_the_proportions() {
        let standard = Sizes::new(4, Sizes::ITEMS);
        assert_eq!((standard.customers, standard.undelivered()), (3_000, 900));
        let small = Sizes::new(1, 1_000);
        assert_eq!((small.customers, small.undelivered()), (30, 9));
        assert_eq!((small.names(), standard.names()), (30, 1_000));
    }
}
