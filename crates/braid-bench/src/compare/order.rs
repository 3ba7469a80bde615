//! The order of a comparison: round robin over the engines in every repeat, so that the drift of a
//! machine affects all engines alike.

/// A visit to an engine: it is opened, measured at all loads, and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    /// Number of the repeat, from 1.
    pub(super) repeat: usize,
    /// Position in the list of engines.
    pub(super) engine: usize,
}

/// Returns all engines for every repeat. Each repeat starts with another engine, so that no engine
/// always follows the same one.
pub(super) fn visits(repeats: usize, engines: usize) -> Vec<Visit> {
    let turns = |repeat: usize| {
        (0..engines).map(move |turn| Visit {
            repeat,
            engine: (turn + repeat - 1) % engines,
        })
    };
    (1..=repeats).flat_map(turns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_its_turn_in_every_repeat() {
        let visits = visits(6, 4);
        assert_eq!(visits.len(), 6 * 4);
        for (i, round) in visits.chunks(4).enumerate() {
            assert!(round.iter().all(|v| v.repeat == i + 1), "{round:?}");
            let mut engines: Vec<_> = round.iter().map(|v| v.engine).collect();
            assert_eq!(engines[0], i % 4, "another one begins each time");
            engines.sort_unstable();
            assert_eq!(engines, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn nothing_is_nothing() {
        assert!(visits(3, 0).is_empty() && visits(0, 2).is_empty());
    }
}
