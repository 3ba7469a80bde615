//! Batches of entries from the caller, encoded one after the other, so that one call to the engine
//! writes them all.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyTuple};

use crate::types::Schema;

/// Encoded entries in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// Ends of each key and each value.
    ends: Vec<(usize, usize)>,
}

impl Batch {
    /// Encodes all entries.
    pub(crate) fn of(schema: &Schema, entries: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut batch = Self::default();
        batch.fill(schema, &mut Pairs::of(entries)?, usize::MAX)?;
        Ok(batch)
    }

    /// Encodes entries until the buffer has the given size, or no entries are left.
    pub(crate) fn fill(
        &mut self,
        schema: &Schema,
        pairs: &mut Pairs<'_>,
        bytes: usize,
    ) -> PyResult<()> {
        while self.bytes.len() < bytes {
            let Some((key, value)) = pairs.next()? else {
                break;
            };
            self.bytes.extend_from_slice(&schema.encode_key(&key)?);
            let key_end = self.bytes.len();
            self.bytes.extend_from_slice(&schema.encode_value(&value)?);
            self.ends.push((key_end, self.bytes.len()));
        }
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut begin = 0;
        self.ends.iter().map(move |&(key_end, end)| {
            let entry = (&self.bytes[begin..key_end], &self.bytes[key_end..end]);
            begin = end;
            entry
        })
    }
}

/// The entries of a mapping, or of an iterable of pairs.
pub(crate) struct Pairs<'py> {
    iterator: Bound<'py, PyIterator>,
    /// Set if the iterator returns the keys of a mapping rather than pairs.
    mapping: Option<Bound<'py, PyAny>>,
    /// Number of entries returned so far.
    count: usize,
}

impl<'py> Pairs<'py> {
    pub(crate) fn of(entries: &Bound<'py, PyAny>) -> PyResult<Self> {
        let (iterable, mapping) = match entries.cast_exact::<PyDict>() {
            // A copy, which no other thread can change.
            Ok(dict) => (dict.items().into_any(), None),
            Err(_) if entries.hasattr("keys")? => {
                (entries.call_method0("keys")?, Some(entries.clone()))
            }
            Err(_) => (entries.clone(), None),
        };
        Ok(Self {
            iterator: iterable.try_iter()?,
            mapping,
            count: 0,
        })
    }

    fn next(&mut self) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let Some(item) = self.iterator.next().transpose()? else {
            return Ok(None);
        };
        self.count += 1;
        if let Some(mapping) = &self.mapping {
            let value = mapping.get_item(&item)?;
            return Ok(Some((item, value)));
        }
        if let Ok(pair) = item.cast_exact::<PyTuple>()
            && pair.len() == 2
        {
            return Ok(Some((pair.get_item(0)?, pair.get_item(1)?)));
        }
        let pair: Vec<Bound<'_, PyAny>> = item.try_iter()?.collect::<PyResult<_>>()?;
        let len = pair.len();
        match <[_; 2]>::try_from(pair) {
            Ok([key, value]) => Ok(Some((key, value))),
            Err(_) => Err(PyValueError::new_err(format!(
                "entry {} has {len} items; an entry must be a key and a value",
                self.count - 1
            ))),
        }
    }
}
