//! `braid bench WORKLOAD --connect ADDRESS`: YCSB over the socket of a server.

use braid_bench::remote::{ServerSpec, measure_server};

use super::bench::WorkloadArgs;
use crate::failure::Failure;
use crate::output::{self, Output};

pub(super) fn run(args: &WorkloadArgs, address: &str, output: &mut Output) -> Result<(), Failure> {
    let server = ServerSpec {
        address: address.to_owned(),
        rate: args.rate,
        spec: args.spec(),
    };
    let bar = output::bar(0, "measuring");
    let report = measure_server(&server, &mut |what| {
        bar.set_message(what.to_owned());
        bar.tick();
    })?;
    bar.finish_and_clear();
    if args.json {
        let json = report
            .to_json()
            .map_err(|error| Failure::Failed(error.to_string()))?;
        return output.line(json);
    }
    output.line(report.to_string().trim_end())
}
