//! The names of the workloads.

use std::fmt;
use std::str::FromStr;

use crate::driver::Driver;
use crate::records::Records;
use crate::{BenchError, Spec};

/// One of the benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Workload {
    /// One uniform blind update a transaction.
    U1,
    /// Ten uniform blind updates a transaction.
    U10,
    /// Half reads, half updates of one field, Zipfian.
    YcsbA,
    /// 95 % reads, 5 % updates of one field, Zipfian.
    YcsbB,
    /// Reads only, Zipfian.
    YcsbC,
    /// 95 % reads of the latest records, 5 % inserts.
    YcsbD,
    /// 95 % scans of 1 to 100 records, 5 % inserts, Zipfian.
    YcsbE,
    /// Half reads, half reads of a record followed by the update of a field, Zipfian.
    YcsbF,
    /// Inserts of new records only.
    YcsbInsert,
    /// Updates of one field only, Zipfian.
    YcsbUpdate,
}

impl Workload {
    /// All workloads in the order in which they are documented.
    pub const ALL: [Workload; 10] = [
        Workload::U1,
        Workload::U10,
        Workload::YcsbA,
        Workload::YcsbB,
        Workload::YcsbC,
        Workload::YcsbD,
        Workload::YcsbE,
        Workload::YcsbF,
        Workload::YcsbInsert,
        Workload::YcsbUpdate,
    ];

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::U1 => "u1",
            Workload::U10 => "u10",
            Workload::YcsbA => "ycsb-a",
            Workload::YcsbB => "ycsb-b",
            Workload::YcsbC => "ycsb-c",
            Workload::YcsbD => "ycsb-d",
            Workload::YcsbE => "ycsb-e",
            Workload::YcsbF => "ycsb-f",
            Workload::YcsbInsert => "ycsb-insert",
            Workload::YcsbUpdate => "ycsb-update",
        }
    }

    /// A sentence for help texts.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Workload::U1 => "one uniform blind update a transaction",
            Workload::U10 => "ten uniform blind updates a transaction",
            Workload::YcsbA => "50 % reads, 50 % field updates, Zipfian",
            Workload::YcsbB => "95 % reads, 5 % field updates, Zipfian",
            Workload::YcsbC => "reads only, Zipfian",
            Workload::YcsbD => "95 % reads of the latest records, 5 % inserts",
            Workload::YcsbE => "95 % scans of 1 to 100 records, 5 % inserts, Zipfian",
            Workload::YcsbF => "50 % reads, 50 % read-modify-writes, Zipfian",
            Workload::YcsbInsert => "inserts of new records only",
            Workload::YcsbUpdate => "field updates only, Zipfian",
        }
    }

    /// The workload with the parameters of `spec`, ready to be loaded and run.
    #[must_use]
    pub(crate) fn driver(self, spec: &Spec) -> Box<dyn Driver> {
        Box::new(Records::new(spec))
    }

    /// Whether its records are scattered by a Zipfian distribution.
    #[must_use]
    pub fn is_ycsb(self) -> bool {
        !matches!(self, Workload::U1 | Workload::U10)
    }

    /// Whether no transaction writes anything.
    #[must_use]
    pub fn is_read_only(self) -> bool {
        self == Workload::YcsbC
    }

    /// Records that are loaded unless the caller says otherwise.
    #[must_use]
    pub fn default_records(self) -> u64 {
        if self.is_ycsb() { 1_000_000 } else { 65_536 }
    }

    /// Bytes of a value unless the caller says otherwise: ten fields of 100 bytes for YCSB.
    #[must_use]
    pub fn default_value_size(self) -> usize {
        if self.is_ycsb() { 1_000 } else { 100 }
    }

    /// Records that a writing transaction writes.
    pub(crate) fn writes(self) -> usize {
        if self == Workload::U10 { 10 } else { 1 }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = BenchError;

    fn from_str(s: &str) -> Result<Self, BenchError> {
        Workload::ALL
            .into_iter()
            .find(|w| w.name() == s)
            .ok_or_else(|| BenchError::Option {
                option: "workload",
                wanted: format!("one of {}", Workload::ALL.map(Workload::name).join(", ")),
                given: s.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse::<Workload>().unwrap(), workload);
        }
        let error = "ycsb-z".parse::<Workload>().unwrap_err().to_string();
        assert!(
            error.contains("ycsb-f") && error.contains("ycsb-z"),
            "{error}"
        );
    }
}
