//! Which frame of the log each frame of SQLite's file is.

use braid_rt::mutant;

/// Set in the tag of a frame that replaces one of SQLite's frames and keeps those after it.
const REPLACES: u32 = 1 << 31;
/// Most frames of SQLite's file.
pub(crate) const MOST: u32 = REPLACES - 1;
/// Page number of the file's header in the log: no page of a database has it.
pub(crate) const HEADER_PAGE: u64 = 0;

/// What a frame of the log does to SQLite's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is the file's header.
    Header,
    /// It becomes the frame with this number, counted from 1, and the last one.
    Append(u32),
    /// It becomes the frame with this number; later ones stay.
    Replace(u32),
}

impl Action {
    pub(crate) fn of(page: u64, tag: u32) -> Self {
        match tag {
            _ if page == HEADER_PAGE => Self::Header,
            tag if tag & REPLACES != 0 => Self::Replace(tag & MOST),
            tag => Self::Append(tag),
        }
    }

    pub(crate) fn tag(self) -> u32 {
        match self {
            Self::Header => 0,
            Self::Append(number) => number,
            Self::Replace(number) => number | REPLACES,
        }
    }
}

/// How the table was before an action of the open transaction.
#[derive(Debug)]
enum Before {
    Header(Option<u64>),
    /// The frames from the new one on.
    Cut(Vec<u64>),
    Replaced(u32, u64),
}

/// Positions in the log of the header and the frames of SQLite's file.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    header: Option<u64>,
    positions: Vec<u64>,
    /// Of the open transaction, the oldest first.
    before: Vec<Before>,
    /// Number of frames before the open transaction.
    committed: u32,
}

impl Frames {
    pub(crate) fn header(&self) -> Option<u64> {
        self.header
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.positions.len()).expect("at most MOST frames")
    }

    /// Position of a frame.
    pub(crate) fn get(&self, number: u32) -> Option<u64> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.positions.get(index).copied()
    }

    /// Notes a frame of the log. Returns whether there is a place for it.
    pub(crate) fn apply(&mut self, action: Action, position: u64) -> bool {
        if !self.is_open() {
            self.committed = self.len();
        }
        match action {
            Action::Header => {
                let old = self.header.replace(position);
                self.before.push(Before::Header(old));
                true
            }
            Action::Append(number) => {
                let Some(index) = (number as usize).checked_sub(1) else {
                    return false;
                };
                if index > self.positions.len() {
                    return false;
                }
                let mut removed = self.positions.split_off(index);
                if mutant!("sqlite_keep_later_frames") && !removed.is_empty() {
                    removed[0] = position;
                    self.positions.append(&mut removed);
                    return true;
                }
                self.positions.push(position);
                self.before.push(Before::Cut(removed));
                true
            }
            Action::Replace(number) => {
                let Some(old) = self.get(number) else {
                    return false;
                };
                self.positions[number as usize - 1] = position;
                self.before.push(Before::Replaced(number, old));
                true
            }
        }
    }

    /// The number of frames before the open transaction, if it has only appended after them.
    pub(crate) fn is_start_of_open(&self, number: u32) -> bool {
        // Most frames are appended after others of their transaction.
        if !self.is_open() || u32::checked_sub(number, 1) != Some(self.committed) {
            return false;
        }
        let mut actions = self.before.iter();
        matches!(actions.next(), Some(Before::Cut(removed)) if removed.is_empty())
            && actions.all(|before| match before {
                Before::Cut(_) => true,
                Before::Replaced(replaced, _) => *replaced >= number,
                Before::Header(_) => false,
            })
    }

    /// Whether a transaction is open.
    pub(crate) fn is_open(&self) -> bool {
        !self.before.is_empty()
    }

    /// Ends the open transaction.
    pub(crate) fn commit(&mut self) {
        self.before.clear();
    }

    /// Removes the open transaction.
    pub(crate) fn roll_back(&mut self) {
        while let Some(before) = self.before.pop() {
            match before {
                Before::Header(header) => self.header = header,
                Before::Cut(removed) => {
                    self.positions.pop();
                    self.positions.extend(removed);
                }
                Before::Replaced(number, position) => {
                    self.positions[number as usize - 1] = position;
                }
            }
        }
    }

    /// Empties the table: a generation begins.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_frame_cuts_and_a_rollback_restores() {
        let mut frames = Frames::default();
        assert!(frames.apply(Action::Header, 1));
        for number in 1..=3 {
            assert!(frames.apply(Action::Append(number), u64::from(number) * 10));
        }
        assert!(!frames.apply(Action::Append(5), 50), "a gap");
        assert!(!frames.apply(Action::Append(0), 50));
        assert!(!frames.apply(Action::Replace(4), 50));
        frames.commit();
        assert!(frames.apply(Action::Replace(1), 11));
        assert!(frames.apply(Action::Append(2), 21));
        assert_eq!(
            (frames.get(1), frames.get(2), frames.len()),
            (Some(11), Some(21), 2)
        );
        assert!(!frames.is_start_of_open(4));
        frames.roll_back();
        assert_eq!(
            (frames.get(1), frames.get(3), frames.len()),
            (Some(10), Some(30), 3)
        );
        assert!(frames.apply(Action::Append(4), 40));
        assert!(frames.apply(Action::Append(5), 50));
        assert!(frames.is_start_of_open(4));
        assert!(!frames.is_start_of_open(5));
        frames.roll_back();
        assert_eq!(
            (frames.header(), frames.get(4), frames.get(0)),
            (Some(1), None, None)
        );
    }

    #[test]
    fn tags_keep_the_action() {
        for action in [Action::Append(7), Action::Replace(7), Action::Append(MOST)] {
            assert_eq!(Action::of(3, action.tag()), action);
        }
        assert_eq!(Action::of(HEADER_PAGE, 0), Action::Header);
    }
}
