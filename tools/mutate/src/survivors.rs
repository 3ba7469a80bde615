//! Explained survivors: `survivors.txt` says why no test can or needs to catch them.

use std::collections::BTreeMap;

use crate::Places;
use crate::run::{points, results};

/// A line of `survivors.txt`: `FILE | FUNCTION | CHANGE`, below its reason. Each part may end with
/// `*`, which stands for any text.
struct Explained {
    line: usize,
    parts: [String; 3],
}

impl Explained {
    fn fits(&self, parts: &[&str; 3]) -> bool {
        let fits = |(pattern, part): (&String, &&str)| match pattern.strip_suffix('*') {
            Some(begin) => part.starts_with(begin),
            None => pattern == part,
        };
        self.parts.iter().zip(parts).all(fits)
    }
}

fn explained(text: &str) -> Vec<Explained> {
    let parse = |(i, line): (usize, &str)| {
        if line.starts_with('#') || line.trim().is_empty() {
            return None;
        }
        let mut parts = line.splitn(3, '|').map(|part| part.trim().to_owned());
        let mut part = || {
            parts.next().unwrap_or_else(|| {
                panic!(
                    "survivors.txt, line {}: not FILE | FUNCTION | CHANGE",
                    i + 1
                )
            })
        };
        Some(Explained {
            line: i + 1,
            parts: [part(), part(), part()],
        })
    };
    text.lines().enumerate().filter_map(parse).collect()
}

/// File, function and change of a point's line `FILE:LINE FUNCTION CHANGE`.
fn parts(point: &str) -> Option<[&str; 3]> {
    let mut words = point.splitn(3, '\t');
    let (place, function, change) = (words.next()?, words.next()?, words.next()?);
    Some([place.split(':').next()?, function, change])
}

/// Lists survivors that `survivors.txt` does not explain, or all of them.
pub fn survivors(places: &Places, arguments: &[String]) {
    let all = arguments.iter().any(|argument| argument == "--all");
    let text = include_str!("../survivors.txt");
    let explained = explained(text);
    let names: BTreeMap<usize, String> = points(places).into_iter().collect();
    let mut used = vec![0; explained.len()];
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for (id, result) in results(places) {
        let Some(point) = names.get(&id) else {
            continue;
        };
        let kind = result.split('\t').next().unwrap_or_default();
        let is_caught = matches!(kind, "caught" | "hung");
        let found = explained
            .iter()
            .position(|explained| parts(point).is_some_and(|parts| explained.fits(&parts)));
        let is_explained = found.is_some() && !is_caught;
        if let Some(found) = found {
            used[found] += 1;
        }
        counts.entry(kind.to_owned()).or_default()[usize::from(is_explained)] += 1;
        if !is_caught && (all || !is_explained) {
            println!("{id}\t{result}");
        }
    }
    for (kind, [other, explained]) in counts {
        match explained {
            0 => println!("{kind}: {other}"),
            _ => println!("{kind}: {} ({explained} explained)", other + explained),
        }
    }
    for (explained, used) in explained.iter().zip(used) {
        let known = || names.values().filter_map(|point| parts(point));
        if used == 0 && !known().any(|parts| explained.fits(&parts)) {
            println!("survivors.txt, line {}: no such mutant", explained.line);
        }
    }
}
