//! Times that were longer than a threshold, by kind of event: LATENCY.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Samples of each event that are kept.
const SAMPLES_MAX: usize = 160;

/// The samples of one kind of event.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// When, in seconds since 1970, and how long, in milliseconds; one for each second, the oldest first.
    pub(crate) samples: VecDeque<(u64, u64)>,
    /// Longest ever, in milliseconds.
    pub(crate) longest: u64,
}

impl History {
    /// Draws the samples as a graph, each labelled by its age at `now`.
    pub(crate) fn graph(&self, name: &str, now: u64) -> String {
        let millis = || self.samples.iter().map(|(_, millis)| *millis);
        let (high, low) = (millis().max().unwrap_or(0), millis().min().unwrap_or(0));
        let age = |time: u64| match now.saturating_sub(time) {
            seconds @ ..60 => format!("{seconds}s"),
            seconds @ ..3600 => format!("{}m", seconds / 60),
            seconds @ ..86400 => format!("{}h", seconds / 3600),
            seconds => format!("{}d", seconds / 86400),
        };
        let columns: Vec<_> = self
            .samples
            .iter()
            .map(|(time, millis)| (*millis, age(*time)))
            .collect();
        format!(
            "{name} - high {high} ms, low {low} ms (all time high {} ms)\n{}\n{}",
            self.longest,
            "-".repeat(80),
            super::graph::draw(&columns)
        )
    }
}

/// Times that were longer than a threshold.
#[derive(Debug, Default)]
pub(crate) struct Spikes {
    events: Mutex<BTreeMap<&'static str, History>>,
}

impl Spikes {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, History>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a duration if it reaches the threshold; a threshold of zero adds nothing.
    pub(crate) fn add(&self, event: &'static str, duration: Duration, threshold: Duration) {
        if threshold.is_zero() || duration < threshold {
            return;
        }
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.add_at(event, braid_rt::wall_clock().as_secs(), millis);
    }

    fn add_at(&self, event: &'static str, time: u64, millis: u64) {
        let mut events = self.lock();
        let history = events.entry(event).or_default();
        history.longest = history.longest.max(millis);
        match history.samples.back_mut() {
            Some((last, longest)) if *last == time => *longest = millis.max(*longest),
            _ => history.samples.push_back((time, millis)),
        }
        if history.samples.len() > SAMPLES_MAX {
            history.samples.pop_front();
        }
    }

    /// Returns the events with their samples.
    pub(crate) fn all(&self) -> Vec<(&'static str, History)> {
        let events = self.lock();
        events
            .iter()
            .map(|(name, history)| (*name, history.clone()))
            .collect()
    }

    /// Forgets the events that `is_meant` names; returns how many.
    pub(crate) fn reset(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let mut events = self.lock();
        let before = events.len();
        events.retain(|name, _| !is_meant(name));
        before - events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_has_extremes_and_ages() {
        let spikes = Spikes::default();
        for (time, millis) in [
            (0, 90),
            (100_000, 5),
            (200_000, 9),
            (203_000, 7),
            (203_001, 7),
        ] {
            spikes.add_at("x", time, millis);
        }
        let graph = spikes.all()[0].1.graph("x", 203_005);
        let lines: Vec<&str> = graph.lines().collect();
        assert_eq!(lines[0], "x - high 90 ms, low 5 ms (all time high 90 ms)");
        assert_eq!(lines[1].len(), 80);
        assert_eq!(
            &lines[2..],
            ["#", "|", "|", "|____", "21554", "dd0ss", "  m", ""]
        );
    }

    #[test]
    fn the_longest_of_a_second_is_kept() {
        let spikes = Spikes::default();
        spikes.add("x", Duration::from_secs(1), Duration::ZERO);
        spikes.add("x", Duration::from_millis(9), Duration::from_millis(10));
        assert!(spikes.all().is_empty());
        for (time, millis) in [(1, 5), (1, 9), (1, 7), (2, 3)] {
            spikes.add_at("x", time, millis);
        }
        let (_, history) = spikes.all().remove(0);
        assert_eq!(history.samples, [(1, 9), (2, 3)]);
        assert_eq!(history.longest, 9);
        for time in 0..500 {
            spikes.add_at("y", time, 1);
        }
        assert_eq!(spikes.all()[1].1.samples.len(), SAMPLES_MAX);
        assert_eq!(spikes.reset(|name| name == "x"), 1);
        assert_eq!(spikes.all().len(), 1);
    }
}
