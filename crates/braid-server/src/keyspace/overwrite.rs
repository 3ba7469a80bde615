//! Writes that replace whatever a key holds by a string.

use bytes::Bytes;

use super::data::Data;
use super::entry::{Body, Entry};
use super::scratch::Scratch;
use crate::failure::Result;

impl Data {
    /// Stores a string that does not expire in place of what the key holds.
    ///
    /// Nearly always that is such a string, too, or nothing: then nothing but the entry changes, and the
    /// old one need not be decoded.
    pub(crate) fn put_string(&mut self, key: &[u8], text: &Bytes) -> Result<()> {
        self.find_place(key);
        let mut head = [0; Entry::STRING_HEAD.next_multiple_of(8)];
        let (table, at) = (&self.keyspace.keys, &self.scratch.place);
        let found = self.view.read_head(table, at, self.writes, &mut head)?;
        let old = match found {
            Some(len) if Entry::is_lasting_string(&head[..len]) => {
                self.changed(key);
                return self.write_string(text);
            }
            // The key is locked: it still holds the same.
            Some(_) => self.header(key)?,
            None => None,
        };
        self.put(key, old.as_ref(), Body::String(text.clone()), None)
    }

    /// Writes a string that does not expire to the place that was found last.
    fn write_string(&mut self, text: &[u8]) -> Result<()> {
        let Scratch { place, encoded } = &mut self.scratch;
        Entry::encode_string_to(text, fastrand::u64(..), encoded);
        Ok(self.view.put(&self.keyspace.keys, place, encoded)?)
    }
}
