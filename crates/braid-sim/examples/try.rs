fn main() {
    let mut args = std::env::args().skip(1);
    let from: u64 = args.next().unwrap().parse().unwrap();
    let to: u64 = args.next().unwrap().parse().unwrap();
    let mut sum = braid_sim::Counts::new();
    let (mut crashes, mut steps, mut failures) = (0, 0, 0);
    let begun = std::time::Instant::now();
    for seed in from..to {
        let protocol = braid::Protocol::ALL[(seed % 7) as usize];
        let plan = braid_sim::Plan::new(seed, protocol);
        match braid_sim::run(&plan) {
            Ok(outcome) => {
                crashes += outcome.crashes;
                steps += outcome.report.steps;
                for (k, v) in outcome.counts {
                    *sum.entry(k).or_default() += v;
                }
            }
            Err(failed) => {
                failures += 1;
                println!(
                    "{seed}: {}\n   {:?}\n{}",
                    failed.violation, failed.plan, failed.history
                );
            }
        }
    }
    println!(
        "{sum:#?}\n{crashes} crashes {steps} steps {failures} failures {:?}",
        begun.elapsed()
    );
}
