//! Runs simulated histories of a mutant: the tool adds this program to its copy of `braid-sim`.
//!
//! `hits FROM TO MOST` prints for each mutant the first seeds whose history it affects; `try ID`
//! reads seeds and prints the first one that detects the mutant.

use std::collections::BTreeMap;
use std::io::Read;

use braid::Protocol;
use braid_rt::mutation;
use braid_sim::{Spec, simulate};

fn history(seed: u64) -> Option<String> {
    let spec = Spec {
        seeds: seed..seed + 1,
        protocols: Protocol::ALL.to_vec(),
        time: None,
        jobs: 1,
        with: Vec::new(),
    };
    let summary = simulate(&spec, &mut |_| ()).expect("the plan makes sense");
    let failed = summary.failed?;
    Some(format!("{} ({}): {}", failed.plan.seed, failed.plan.protocol, failed.violation))
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let arguments: Vec<String> = std::env::args().collect();
    let number = |i: usize| arguments[i].parse::<u64>().expect("a number");
    match &arguments[1][..] {
        "hits" => {
            let mut seeds: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
            mutation::take_hits();
            for seed in number(2)..number(3) {
                if let Some(violation) = history(seed) {
                    println!("violation without a mutant: {violation}");
                    std::process::exit(1);
                }
                for id in mutation::take_hits() {
                    let seeds = seeds.entry(id).or_default();
                    if seeds.len() < number(4) as usize {
                        seeds.push(seed);
                    }
                }
            }
            for (id, seeds) in seeds {
                let seeds: Vec<_> = seeds.iter().map(u64::to_string).collect();
                println!("{id} {}", seeds.join(" "));
            }
        }
        _ => {
            mutation::choose(number(2) as usize);
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).expect("seeds");
            for seed in text.split_whitespace() {
                if let Some(violation) = history(seed.parse().expect("a seed")) {
                    println!("{}", violation.lines().next().unwrap_or_default());
                    std::process::exit(1);
                }
            }
        }
    }
}
