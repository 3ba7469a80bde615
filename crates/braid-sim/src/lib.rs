//! Deterministic simulation of the whole engine, and the checker of what it does.
//!
//! A *history* is made by a seed: concurrent clients run transactions against the real engine, whose threads
//! are tasks of [`braid_rt::simulation`] and whose medium is a [`braid_io::SimDevice`]. The power goes, processes
//! are killed, reads, writes and syncs fail, the device is full, sectors media faults, at any step,
//! during recovery and checkpoints, too. After each round everything that clients saw, and what is
//! there after the next opening, is held against the rules: [`check`] by replaying the order that
//! the engine claims, [`graph`] by looking for cycles without believing it.
//!
//! The same [`Plan`] does the same again, and [`shrink`] finds a simpler one that fails, too.

mod background;
pub mod check;
mod client;
pub mod coverage;
mod foreign;
pub mod graph;
mod history;
mod keys;
mod memory;
mod plan;
mod processor;
pub mod record;
mod simulate;

pub use history::{Counts, Failed, Outcome, run};
pub use plan::Plan;
pub use simulate::{Count, Spec, Summary, simulate};

/// Finds a simpler plan that fails, too, by trying simpler ones as long as that helps; `progress` is called
/// with each that does.
pub fn shrink(failed: &Failed, progress: &mut dyn FnMut(&Failed)) -> Failed {
    let mut best = failed.clone();
    let mut again = true;
    while again {
        again = false;
        for plan in best.plan.simpler() {
            // Simpler plans take other turns; some seeds near by may still fail.
            let seeds = (0..20).map(|n| Plan {
                seed: plan.seed.wrapping_add(n),
                ..plan.clone()
            });
            if let Some(simpler) = seeds.map(|plan| run(&plan)).find_map(Result::err) {
                best = simpler;
                progress(&best);
                again = true;
                break;
            }
        }
    }
    best
}
