//! The workloads.

use std::fmt;
use std::str::FromStr;

use crate::bank::Bank;
use crate::driver::Driver;
use crate::records::Records;
use crate::tpcb::{self, Tpcb};
use crate::tpcc::{self, Tpcc};
use crate::{BenchError, Spec};

/// One of the benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Workload {
    /// One uniform blind update per transaction.
    U1,
    /// Ten uniform blind updates per transaction.
    U10,
    /// A hundred inserts of new records at uniformly drawn places per transaction.
    Inserts,
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
    /// Scans of one length, Zipfian.
    Scan,
    /// One uniform blind update of a large value per transaction.
    Large,
    /// A bulk load in key order, timed as a whole.
    Load,
    /// Transfers between accounts, with adjustable contention.
    Bank,
    /// TPC-B.
    Tpcb,
    /// TPC-C's standard mix.
    Tpcc,
    /// TPC-C's New-Order alone.
    TpccNo,
}

impl Workload {
    /// All workloads in the order in which they are documented.
    pub const ALL: [Workload; 18] = [
        Workload::U1,
        Workload::U10,
        Workload::Inserts,
        Workload::YcsbA,
        Workload::YcsbB,
        Workload::YcsbC,
        Workload::YcsbD,
        Workload::YcsbE,
        Workload::YcsbF,
        Workload::YcsbInsert,
        Workload::YcsbUpdate,
        Workload::Scan,
        Workload::Large,
        Workload::Load,
        Workload::Bank,
        Workload::Tpcb,
        Workload::Tpcc,
        Workload::TpccNo,
    ];

    /// Returns the name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::U1 => "u1",
            Workload::U10 => "u10",
            Workload::Inserts => "inserts",
            Workload::YcsbA => "ycsb-a",
            Workload::YcsbB => "ycsb-b",
            Workload::YcsbC => "ycsb-c",
            Workload::YcsbD => "ycsb-d",
            Workload::YcsbE => "ycsb-e",
            Workload::YcsbF => "ycsb-f",
            Workload::YcsbInsert => "ycsb-insert",
            Workload::YcsbUpdate => "ycsb-update",
            Workload::Scan => "scan",
            Workload::Large => "large",
            Workload::Load => "load",
            Workload::Bank => "bank",
            Workload::Tpcb => "tpcb",
            Workload::Tpcc => "tpcc",
            Workload::TpccNo => "tpcc-no",
        }
    }

    /// Returns a sentence for help texts.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Workload::U1 => "one uniform blind update a transaction",
            Workload::U10 => "ten uniform blind updates a transaction",
            Workload::Inserts => "a hundred inserts at random places a transaction",
            Workload::YcsbA => "50 % reads, 50 % field updates, Zipfian",
            Workload::YcsbB => "95 % reads, 5 % field updates, Zipfian",
            Workload::YcsbC => "reads only, Zipfian",
            Workload::YcsbD => "95 % reads of the latest records, 5 % inserts",
            Workload::YcsbE => "95 % scans of 1 to 100 records, 5 % inserts, Zipfian",
            Workload::YcsbF => "50 % reads, 50 % read-modify-writes, Zipfian",
            Workload::YcsbInsert => "inserts of new records only",
            Workload::YcsbUpdate => "field updates only, Zipfian",
            Workload::Scan => "scans of --scan-length records, Zipfian",
            Workload::Large => "one uniform blind update of a value of 64 KiB a transaction",
            Workload::Load => "a bulk load in the order of the keys, timed as a whole",
            Workload::Bank => {
                "transfers between accounts, --hot of which take part; the sum is checked"
            }
            Workload::Tpcb => "TPC-B, --scale branches; the sums are checked",
            Workload::Tpcc => {
                "TPC-C's five transactions, --scale warehouses; its consistency is checked"
            }
            Workload::TpccNo => {
                "TPC-C's New-Order alone, --scale warehouses; its consistency is checked"
            }
        }
    }

    /// Returns the driver with the parameters of `spec`, ready to be loaded and run.
    #[must_use]
    pub(crate) fn driver(self, spec: &Spec) -> Box<dyn Driver> {
        match self {
            Workload::Bank => Box::new(Bank::new(spec)),
            Workload::Tpcb => Box::new(Tpcb::new(spec)),
            Workload::Tpcc | Workload::TpccNo => Box::new(Tpcc::new(spec)),
            _ => Box::new(Records::new(spec)),
        }
    }

    /// Returns whether the workload belongs to YCSB: draws of records are Zipfian, keys are
    /// scattered.
    #[must_use]
    pub fn is_ycsb(self) -> bool {
        matches!(
            self,
            Workload::YcsbA
                | Workload::YcsbB
                | Workload::YcsbC
                | Workload::YcsbD
                | Workload::YcsbE
                | Workload::YcsbF
                | Workload::YcsbInsert
                | Workload::YcsbUpdate
                | Workload::Scan
        )
    }

    /// Returns whether the workload belongs to TPC-C.
    #[must_use]
    pub fn is_tpcc(self) -> bool {
        matches!(self, Workload::Tpcc | Workload::TpccNo)
    }

    /// Returns whether all transactions only read.
    #[must_use]
    pub fn is_read_only(self) -> bool {
        matches!(self, Workload::YcsbC | Workload::Scan)
    }

    /// Returns whether the workload ends by itself, with its last transaction, and not after a
    /// time.
    #[must_use]
    pub fn is_finite(self) -> bool {
        self == Workload::Load
    }

    /// Returns whether its data grows with each transaction.
    #[must_use]
    pub fn only_inserts(self) -> bool {
        matches!(self, Workload::Inserts | Workload::YcsbInsert)
    }

    /// Returns the default number of records to load: accounts of a branch for TPC-B; items for
    /// TPC-C, which scale all of its data.
    #[must_use]
    pub fn default_records(self) -> u64 {
        match self {
            Workload::U1 | Workload::U10 => 65_536,
            Workload::Large => 2_048,
            Workload::Bank => 100_000,
            Workload::Tpcb => tpcb::ACCOUNTS,
            Workload::Tpcc | Workload::TpccNo => tpcc::DEFAULT_ITEMS,
            _ => 1_000_000,
        }
    }

    /// Returns the default size of a value: ten fields of 100 bytes for YCSB. Bank, TPC-B and TPC-C
    /// have rows of their own.
    #[must_use]
    pub fn default_value_size(self) -> usize {
        match self {
            Workload::U1 | Workload::U10 | Workload::Inserts => 100,
            Workload::Large => 64 << 10,
            Workload::Bank => 16,
            Workload::Tpcb | Workload::Tpcc | Workload::TpccNo => 96,
            _ => 1_000,
        }
    }

    /// Returns the number of records that a writing transaction writes; for TPC-C, roughly the
    /// mean.
    pub(crate) fn writes(self) -> usize {
        match self {
            Workload::U10 => 10,
            Workload::Inserts => 100,
            Workload::Bank => 2,
            Workload::Tpcb => 4,
            Workload::Tpcc => 6,
            Workload::TpccNo => 9,
            _ => 1,
        }
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
