//! YCSB against a server for Redis clients, over its socket.
//!
//! Records are laid out as by YCSB's own binding for Redis: a record is a hash of ten fields, and a
//! sorted set has the keys of all records, in which scans find their range. An update writes one
//! field, a read-modify-write reads a record and then writes one field, and an insert writes a
//! record and its entry of the sorted set. Each client waits for the reply to one operation before
//! it begins the next.
//!
//! The workloads of blind updates set strings: U-1 by SET, U-10 ten of them between MULTI and EXEC.

#[cfg(feature = "connect")]
mod client;
mod report;
#[cfg(feature = "connect")]
mod run;

pub use self::report::{OperationReport, ServerReport};

use crate::{BenchError, Spec, Workload};

/// A server to measure, and how.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// `HOST:PORT`, the path of a Unix socket, or a URL such as `redis://user:password@host:port`.
    pub address: String,
    /// Operations per second of all clients together, begun at fixed times, from which latencies
    /// count; `None` if each client begins an operation when its last one has ended.
    pub rate: Option<f64>,
    /// Workload and data; a thread is a client.
    pub spec: Spec,
}

impl ServerSpec {
    /// Checks the parameters.
    ///
    /// # Errors
    ///
    /// [`BenchError::Option`] names the first invalid one.
    pub fn check(&self) -> Result<(), BenchError> {
        let invalid = |option, wanted: &str, given: String| BenchError::Option {
            option,
            wanted: wanted.into(),
            given,
        };
        self.spec.check()?;
        let is_blind = matches!(self.spec.workload, Workload::U1 | Workload::U10);
        if !is_blind && !self.spec.workload.is_ycsb() {
            let wanted = "u1, u10, ycsb-load, ycsb-a to ycsb-f, ycsb-update or scan with a server";
            let given = self.spec.workload.to_string();
            return Err(invalid("workload", wanted, given));
        }
        if self.spec.in_flight != 1 {
            let given = self.spec.in_flight.to_string();
            return Err(invalid("in-flight", "1 with a server", given));
        }
        if let Some(rate) = self.rate
            && !(rate > 0.0 && rate <= 1e9)
        {
            let wanted = "more than 0 and at most 1000000000";
            return Err(invalid("rate", wanted, rate.to_string()));
        }
        Ok(())
    }

    /// Returns the address as a URL.
    #[cfg_attr(not(feature = "connect"), allow(dead_code))]
    fn url(&self) -> String {
        let address = &self.address;
        if address.contains("://") {
            address.clone()
        } else if address.contains('/') {
            // A URL would take the first folder of a relative path for a host.
            let path = std::path::absolute(address).unwrap_or_else(|_| address.into());
            format!("unix://{}", path.display())
        } else {
            format!("redis://{address}")
        }
    }
}

/// Loads the records of a workload into a server, unless an earlier run left them there, runs the
/// workload, and reports. `progress` gets a few words before each part.
///
/// The records stay in the server: delete them, or measure a server that has nothing else.
///
/// # Errors
///
/// [`BenchError::Unavailable`] in a build without the feature `connect`, [`BenchError::Option`] for
/// an invalid parameter, [`BenchError::Server`] for the first error of the server or a connection.
pub fn measure_server(
    server: &ServerSpec,
    progress: &mut dyn FnMut(&str),
) -> Result<ServerReport, BenchError> {
    server.check()?;
    #[cfg(feature = "connect")]
    return run::measure(server, progress);
    #[cfg(not(feature = "connect"))]
    {
        let _ = progress;
        Err(BenchError::Unavailable {
            name: "a server",
            note: "built without a client; build with `--features connect`".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(workload: Workload) -> ServerSpec {
        ServerSpec {
            address: "localhost:1".into(),
            rate: None,
            spec: Spec::new(workload),
        }
    }

    #[test]
    fn addresses_become_urls() {
        for (address, url) in [
            ("localhost:6379", "redis://localhost:6379"),
            ("[::1]:6379", "redis://[::1]:6379"),
            ("/run/braid.sock", "unix:///run/braid.sock"),
            ("rediss://u:p@host:1/2", "rediss://u:p@host:1/2"),
        ] {
            let server = ServerSpec {
                address: address.into(),
                ..server(Workload::YcsbA)
            };
            assert_eq!(server.url(), url);
        }
        let relative = ServerSpec {
            address: "target/braid.sock".into(),
            ..server(Workload::YcsbA)
        };
        let there = std::env::current_dir().unwrap().join("target/braid.sock");
        assert_eq!(relative.url(), format!("unix://{}", there.display()));
    }

    #[test]
    fn parameters_that_no_server_can_use_are_named() {
        let good = server(Workload::YcsbA);
        good.check().unwrap();
        let in_flight = Spec {
            in_flight: 2,
            ..good.spec.clone()
        };
        for (server, name) in [
            (server(Workload::Tpcb), "workload"),
            (
                ServerSpec {
                    rate: Some(0.0),
                    ..good.clone()
                },
                "rate",
            ),
            (
                ServerSpec {
                    spec: in_flight,
                    ..good.clone()
                },
                "in-flight",
            ),
        ] {
            let error = server.check().unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[cfg(not(feature = "connect"))]
    #[test]
    fn a_build_without_a_client_says_what_is_missing() {
        let error = measure_server(&server(Workload::YcsbA), &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("--features connect"), "{error}");
    }
}
