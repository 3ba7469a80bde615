//! The rows: fixed layouts of little-endian numbers, and texts preceded by their lengths.
//!
//! Money is in cents, taxes and discounts are in hundredths of a percent, times are microseconds
//! since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::BenchError;
use crate::engines::{Stop, TableId, Transaction};

/// Returns the current time, as stored in rows.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_micros() as u64)
}

/// Reads the fields of a row in order.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn of(row: &'a [u8]) -> Self {
        Fields(row)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }

    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.u8()?);
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }
}

/// Builds a row of texts and numbers.
#[derive(Default)]
pub(super) struct Builder(pub(super) Vec<u8>);

impl Builder {
    pub(super) fn number<const N: usize>(mut self, little_endian: [u8; N]) -> Self {
        self.0.extend_from_slice(&little_endian);
        self
    }

    pub(super) fn text(mut self, text: &[u8]) -> Self {
        debug_assert!(text.len() < 256);
        self.0.push(text.len() as u8);
        self.0.extend_from_slice(text);
        self
    }
}

/// Returns the error for a required row that is missing or that this workload did not write.
pub(super) fn wrong(table: TableId) -> Stop {
    Stop::Failed(BenchError::Row {
        table: super::schema::NAMES
            .get(table)
            .map_or("catalogue", |name| name),
    })
}

/// Announces the next rows, a few at a time.
pub(super) fn prefetch<const LEN: usize>(
    tx: &mut dyn Transaction,
    table: TableId,
    keys: impl IntoIterator<Item = [u8; LEN]>,
) -> Result<(), Stop> {
    let keys: Vec<[u8; LEN]> = keys.into_iter().collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    tx.prefetch(table, &keys)
}

/// Decodes a row that must exist.
pub(super) fn fetch<T>(
    tx: &mut dyn Transaction,
    table: TableId,
    key: &[u8],
    mut decode: impl FnMut(&[u8]) -> Option<T>,
) -> Result<T, Stop> {
    let mut decoded = None;
    tx.get(table, key, &mut |row| decoded = decode(row))?;
    decoded.ok_or_else(|| wrong(table))
}

/// Decodes a row that must exist and is about to be overwritten.
pub(super) fn fetch_for_update<T>(
    tx: &mut dyn Transaction,
    table: TableId,
    key: &[u8],
    mut decode: impl FnMut(&[u8]) -> Option<T>,
) -> Result<T, Stop> {
    let mut decoded = None;
    tx.get_for_update(table, key, &mut |row| decoded = decode(row))?;
    decoded.ok_or_else(|| wrong(table))
}

/// Decodes a row that may be missing.
pub(super) fn fetch_if_there<T>(
    tx: &mut dyn Transaction,
    table: TableId,
    key: &[u8],
    mut decode: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Option<T>, Stop> {
    let mut decoded = None;
    let is_there = tx.get(table, key, &mut |row| decoded = decode(row))?;
    match decoded {
        None if is_there => Err(wrong(table)),
        decoded => Ok(decoded),
    }
}

/// Adds to a number in a row of its own: a year-to-date sum.
pub(super) fn add(
    tx: &mut dyn Transaction,
    table: TableId,
    key: &[u8],
    cents: i64,
) -> Result<(), Stop> {
    let ytd = fetch_for_update(tx, table, key, |row| Fields::of(row).i64())?;
    tx.put(table, key, &(ytd + cents).to_le_bytes())
}

/// A row of numbers only.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident[$len:tt] { $($(#[$field_doc:meta])* $field:ident: $type:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) struct $name {
            $($(#[$field_doc])* pub(super) $field: $type,)+
        }

        impl $name {
            pub(super) fn encode(&self) -> [u8; $len] {
                let mut row = [0; $len];
                let mut at = 0;
                $(
                    let bytes = self.$field.to_le_bytes();
                    row[at..at + bytes.len()].copy_from_slice(&bytes);
                    at += bytes.len();
                )+
                debug_assert_eq!(at, $len);
                row
            }

            pub(super) fn decode(row: &[u8]) -> Option<Self> {
                let mut fields = Fields::of(row);
                Some($name { $($field: fields.$type()?,)+ })
            }
        }
    };
}

row! {
    /// The changing columns of a customer.
    Account[24] {
        balance: i64,
        ytd_payment: i64,
        payments: u32,
        deliveries: u32,
    }
}

row! {
    /// The changing columns of a stock row.
    StockLevel[14] {
        quantity: u16,
        ytd: u32,
        orders: u32,
        remote: u32,
    }
}

row! {
    /// An order, including its number of lines.
    Order[13] {
        customer: u16,
        entered: u64,
        /// Zero: not delivered.
        carrier: u8,
        lines: u8,
        all_local: u8,
    }
}

/// Size of a stock's text for one district.
pub(super) const DISTRICT_TEXT: usize = 24;

/// Size of a line's numbers.
const LINE: usize = 19;

row! {
    /// The numbers of an order line, before the text of its stock for the district.
    Line[LINE] {
        item: u32,
        supplier: u16,
        /// Zero: not delivered.
        delivered: u64,
        quantity: u8,
        amount: i32,
    }
}

impl Line {
    /// Returns the whole row.
    pub(super) fn with_text(&self, text: &[u8; DISTRICT_TEXT]) -> [u8; LINE + DISTRICT_TEXT] {
        let mut row = [0; LINE + DISTRICT_TEXT];
        row[..LINE].copy_from_slice(&self.encode());
        row[LINE..].copy_from_slice(text);
        row
    }
}

row! {
    /// The numbers of a payment, before its text.
    Payment[20] {
        customer: u16,
        customer_district: u8,
        customer_warehouse: u16,
        district: u8,
        warehouse: u16,
        date: u64,
        amount: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_back() {
        let line = Line {
            item: 100_000,
            supplier: 4,
            delivered: now(),
            quantity: 5,
            amount: -999_999,
        };
        let row = line.with_text(&[b'x'; DISTRICT_TEXT]);
        assert_eq!(Line::decode(&row), Some(line));
        assert_eq!(Line::decode(&row[..10]), None);
        let account = Account {
            balance: -1_000,
            ytd_payment: i64::MAX,
            payments: 1,
            deliveries: 7,
        };
        assert_eq!(Account::decode(&account.encode()), Some(account));
    }

    #[test]
    fn texts_follow_their_lengths() {
        let row = Builder::default()
            .number(7_u16.to_le_bytes())
            .text(b"abc")
            .text(b"")
            .0;
        let mut fields = Fields::of(&row);
        assert_eq!(fields.u16(), Some(7));
        assert_eq!(fields.text(), Some(&b"abc"[..]));
        assert_eq!(fields.text(), Some(&b""[..]));
        assert_eq!(fields.text(), None);
        assert_eq!(Fields::of(&[9, 1]).text(), None, "cut off");
    }
}
