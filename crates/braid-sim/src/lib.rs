//! Deterministic simulation of the whole engine, and the checker of its histories.
//!
//! A seed determines a *history*: concurrent clients run transactions against the real engine,
//! whose threads are tasks of [`braid_rt::simulation`] and whose medium is a
//! [`braid_io::SimDevice`]. The power fails, processes are killed, reads, writes and syncs fail,
//! the device is full, and sectors suffer media faults, at any step, also during recovery and
//! checkpoints. After each round, the rules are checked against everything that clients saw and the
//! state after the next opening: [`check`] replays the order that the engine claims, [`graph`]
//! searches for cycles without relying on that order.
//!
//! The same [`Plan`] always produces the same history, and [`shrink`] finds a simpler plan that
//! also fails.

mod background;
pub mod check;
mod client;
pub mod coverage;
mod drive;
mod foreign;
pub mod graph;
mod history;
#[cfg(unix)]
pub mod images;
mod keys;
mod memory;
mod plan;
mod processor;
pub mod record;
mod simulate;
mod spaces;
mod tables;

pub use history::{Counts, Failed, Outcome, run};
pub use plan::Plan;
pub use simulate::{Count, Spec, Summary, simulate};

/// Finds a simpler plan that also fails, by trying simpler plans as long as one fails. Calls
/// `progress` with each simpler failure.
pub fn shrink(failed: &Failed, progress: &mut dyn FnMut(&Failed)) -> Failed {
    let mut best = failed.clone();
    let mut again = true;
    while again {
        again = false;
        for plan in best.plan.simpler() {
            // Simpler plans take other schedules; some nearby seeds may still fail.
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
