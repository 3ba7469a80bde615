//! The directory as the journal has it: names, and where the contents of files are.
//!
//! An entry of the journal contains the difference between two directories, and applies as a whole.
//! Its payload is a sequence of records:
//!
//! | record | fields |
//! |---|---|
//! | a name | 1 (one byte), file (8 bytes; 0 if the name is removed), length (2 bytes), the name |
//! | a file | 2 (one byte), file (8), bytes (8), valid bytes (8), extents that stay (4), number of new extents (4), new extents: first unit (8; all ones for a hole), units (8) |
//!
//! A file that has no name after an entry is gone.

use std::collections::{BTreeMap, BTreeSet};

use super::superblock::{u32_at, u64_at};

/// Longest name of a file in bytes.
pub(super) const NAME_MAX: usize = 1024;

const NAME: u8 = 1;
const FILE: u8 = 2;
const HOLE: u64 = u64::MAX;

/// A run of allocation units of a file, or a hole, which reads as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// First unit; `None` for a hole.
    pub(super) at: Option<u64>,
    pub(super) units: u64,
}

/// Where the contents of a file are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Length in bytes.
    pub(super) len: u64,
    /// Bytes that were written or are in a hole; those after them read as zero, whatever the drive
    /// contains there.
    pub(super) valid: u64,
    pub(super) extents: Vec<Extent>,
}

impl Layout {
    pub(super) fn units(&self) -> u64 {
        self.extents.iter().map(|extent| extent.units).sum()
    }

    /// Appends an extent, joined with the last one if possible.
    pub(super) fn push(&mut self, extent: Extent) {
        if extent.units == 0 {
            return;
        }
        if let Some(last) = self.extents.last_mut() {
            let next = last.at.map(|at| at + last.units);
            if (last.at.is_none() && extent.at.is_none()) || (next.is_some() && next == extent.at) {
                last.units += extent.units;
                return;
            }
        }
        self.extents.push(extent);
    }

    /// Replaces units `from..from + new units` by other extents, and returns what was there.
    pub(super) fn replace(&mut self, from: u64, new: &[Extent]) -> Vec<Extent> {
        let count: u64 = new.iter().map(|extent| extent.units).sum();
        let (mut before, mut removed, mut after) = (Self::default(), Vec::new(), Self::default());
        let mut start = 0;
        for extent in std::mem::take(&mut self.extents) {
            let cut = |range: std::ops::Range<u64>| {
                let (low, high) = (range.start.max(start), range.end.min(start + extent.units));
                (low < high).then(|| Extent {
                    at: extent.at.map(|at| at + (low - start)),
                    units: high - low,
                })
            };
            before.extents.extend(cut(0..from));
            removed.extend(cut(from..from + count));
            after.extents.extend(cut(from + count..u64::MAX));
            start += extent.units;
        }
        for part in [&before.extents[..], new, &after.extents[..]] {
            part.iter().for_each(|&extent| self.push(extent));
        }
        removed
    }

    /// Cuts off everything after the first `units` units, and returns it.
    pub(super) fn truncate(&mut self, units: u64) -> Vec<Extent> {
        let mut kept = Self::default();
        let mut removed = Vec::new();
        let mut start = 0;
        for extent in std::mem::take(&mut self.extents) {
            let keep = units.saturating_sub(start).min(extent.units);
            kept.push(Extent {
                units: keep,
                ..extent
            });
            if keep < extent.units {
                removed.push(Extent {
                    at: extent.at.map(|at| at + keep),
                    units: extent.units - keep,
                });
            }
            start += extent.units;
        }
        self.extents = kept.extents;
        removed
    }
}

/// Names and files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) names: BTreeMap<String, u64>,
    pub(super) files: BTreeMap<u64, Layout>,
}

/// Appends the record of a name.
pub(super) fn put_name(payload: &mut Vec<u8>, name: &str, file: Option<u64>) {
    payload.push(NAME);
    payload.extend(file.unwrap_or(0).to_le_bytes());
    let len = u16::try_from(name.len()).expect("names are checked");
    payload.extend(len.to_le_bytes());
    payload.extend(name.as_bytes());
}

/// Appends the record of a file that was `before`.
pub(super) fn put_file(payload: &mut Vec<u8>, file: u64, layout: &Layout, before: &Layout) {
    let both = layout.extents.iter().zip(&before.extents);
    let keep = both.take_while(|(now, before)| now == before).count();
    payload.push(FILE);
    payload.extend(file.to_le_bytes());
    payload.extend(layout.len.to_le_bytes());
    payload.extend(layout.valid.to_le_bytes());
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes();
    payload.extend(count(keep));
    payload.extend(count(layout.extents.len() - keep));
    for extent in &layout.extents[keep..] {
        payload.extend(extent.at.unwrap_or(HOLE).to_le_bytes());
        payload.extend(extent.units.to_le_bytes());
    }
}

/// Takes bytes from the front.
fn take<'a>(payload: &mut &'a [u8], len: usize) -> Result<&'a [u8], &'static str> {
    let taken = payload.split_off(..len);
    taken.ok_or("a record of the journal is cut off")
}

impl Image {
    /// Returns the payload that makes this directory out of an empty one.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for (name, file) in &self.names {
            put_name(&mut payload, name, Some(*file));
        }
        for (file, layout) in &self.files {
            put_file(&mut payload, *file, layout, &Layout::default());
        }
        payload
    }

    /// Applies an entry.
    ///
    /// # Errors
    ///
    /// The fault of the payload.
    pub(super) fn apply(&mut self, mut payload: &[u8]) -> Result<(), &'static str> {
        let mut touched = BTreeSet::new();
        while !payload.is_empty() {
            match take(&mut payload, 1)?[0] {
                NAME => {
                    let fields = take(&mut payload, 10)?;
                    let file = u64_at(fields, 0);
                    let len = usize::from(u16::from_le_bytes([fields[8], fields[9]]));
                    let name = std::str::from_utf8(take(&mut payload, len)?);
                    let name = name.map_err(|_| "a name is not UTF-8")?;
                    let before = if file == 0 {
                        self.names.remove(name)
                    } else {
                        touched.insert(file);
                        self.files.entry(file).or_default();
                        self.names.insert(name.to_owned(), file)
                    };
                    touched.extend(before);
                }
                FILE => {
                    let fields = take(&mut payload, 32)?;
                    let file = u64_at(fields, 0);
                    let layout = self.files.entry(file).or_default();
                    layout.len = u64_at(fields, 8);
                    layout.valid = u64_at(fields, 16);
                    let keep = braid_rt::to_usize(u64::from(u32_at(fields, 24)));
                    if keep > layout.extents.len() {
                        return Err("a file lacks extents");
                    }
                    layout.extents.truncate(keep);
                    for _ in 0..u32_at(fields, 28) {
                        let extent = take(&mut payload, 16)?;
                        let at = u64_at(extent, 0);
                        layout.extents.push(Extent {
                            at: (at != HOLE).then_some(at),
                            units: u64_at(extent, 8),
                        });
                    }
                    touched.insert(file);
                }
                _ => return Err("the journal has a record of an unknown kind"),
            }
        }
        // Only files that the entry names may have lost their names.
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        for file in touched {
            if !named.contains(&file) {
                self.files.remove(&file);
            }
        }
        Ok(())
    }

    /// Returns everything that is wrong with the directory of a volume with this many units of this
    /// many bytes (V1).
    pub(super) fn faults(&self, units: u64, unit: u64) -> Vec<String> {
        let mut faults = Vec::new();
        let mut owners: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let name = |file: u64| {
            let mut names = self.names.iter();
            let found = names.find(|(_, of)| **of == file);
            found.map_or_else(|| format!("file {file}"), |(name, _)| format!("{name:?}"))
        };
        let mut seen = BTreeSet::new();
        for (other, file) in &self.names {
            if !seen.insert(file) {
                faults.push(format!("{other:?} is a second name of {}", name(*file)));
            }
        }
        for (&file, layout) in &self.files {
            let covered = layout.extents.iter().try_fold(0_u64, |sum, extent| {
                sum.checked_add(extent.units).filter(|_| extent.units > 0)
            });
            let needed = layout.len.div_ceil(unit);
            if covered != Some(needed) || layout.valid > layout.len {
                faults.push(format!(
                    "{} has {} bytes, of which {} are valid, and extents for {} units",
                    name(file),
                    layout.len,
                    layout.valid,
                    covered.map_or_else(|| "an unknown number of".into(), |n| n.to_string()),
                ));
            }
            for extent in &layout.extents {
                let Some(at) = extent.at else { continue };
                let end = at.saturating_add(extent.units);
                if end > units {
                    faults.push(format!(
                        "{} has units {at}..{end}, and the volume has {units}",
                        name(file)
                    ));
                    continue;
                }
                let before = owners.range(..end).next_back();
                if let Some((_, &(other_end, other))) = before
                    && other_end > at
                {
                    faults.push(format!(
                        "{} and {} share units before {}",
                        name(file),
                        name(other),
                        end.min(other_end)
                    ));
                }
                owners.insert(at, (end, file));
            }
        }
        faults
    }

    /// Returns the units that no file has, as runs.
    pub(super) fn free_runs(&self, units: u64) -> Vec<(u64, u64)> {
        let mut used: Vec<(u64, u64)> = self
            .files
            .values()
            .flat_map(|layout| &layout.extents)
            .filter_map(|extent| Some((extent.at?, extent.units)))
            .collect();
        used.sort_unstable();
        let mut runs = Vec::new();
        let mut end = 0;
        for (at, len) in used.into_iter().chain([(units, 0)]) {
            if at > end {
                runs.push((end, at - end));
            }
            end = end.max(at + len);
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(at: u64, units: u64) -> Extent {
        Extent {
            at: Some(at),
            units,
        }
    }

    #[test]
    fn units_are_replaced_in_the_middle() {
        let mut layout = Layout::default();
        layout.push(extent(10, 4));
        layout.push(extent(14, 2));
        layout.push(extent(30, 2));
        assert_eq!(layout.extents.len(), 2);
        let hole = Extent { at: None, units: 3 };
        assert_eq!(layout.replace(4, &[hole]), [extent(14, 2), extent(30, 1)]);
        assert_eq!(layout.extents, [extent(10, 4), hole, extent(31, 1)]);
        assert_eq!(layout.replace(4, &[extent(14, 3)]), [hole]);
        assert_eq!(layout.extents, [extent(10, 7), extent(31, 1)]);
        assert_eq!(layout.truncate(3), [extent(13, 4), extent(31, 1)]);
        assert_eq!(layout.units(), 3);
    }

    #[test]
    fn any_payload_is_applied_or_refused() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut image = Image::default();
        let mut payload = Vec::new();
        put_name(&mut payload, "a", Some(1));
        let mut layout = Layout {
            len: 8192,
            valid: 4096,
            extents: vec![extent(3, 2)],
        };
        put_file(&mut payload, 1, &layout, &Layout::default());
        image.apply(&payload).unwrap();
        assert_eq!(image.files[&1], layout);
        assert_eq!(image.faults(5, 4096), Vec::<String>::new());
        assert_eq!(image.free_runs(9), [(0, 3), (5, 4)]);
        assert_eq!(image.faults(4, 4096).len(), 1);
        let before = layout.clone();
        layout.push(extent(9, 1));
        layout.len = 12_288;
        let mut more = Vec::new();
        put_file(&mut more, 1, &layout, &before);
        put_name(&mut more, "b", Some(1));
        put_name(&mut more, "a", None);
        image.apply(&more).unwrap();
        assert_eq!((image.names.len(), image.files[&1].extents.len()), (1, 2));
        for _ in 0..20_000 {
            let mut changed = payload.clone();
            let at = random.usize(..changed.len());
            changed[at] = random.u8(..);
            changed.truncate(random.usize(..=changed.len()));
            let mut other = image.clone();
            let _ = other.apply(&changed);
            let _ = other.faults(5, 4096);
        }
    }
}
