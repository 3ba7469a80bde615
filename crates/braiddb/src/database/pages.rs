//! Pages of tables in memory.

use braid_store::MissingPages;

use super::Database;
use crate::error::Result;

impl Database {
    /// Loads pages that a nonblocking read found missing, all at the same time; see
    /// [`Snapshot::set_nonblocking`](crate::Snapshot::set_nonblocking). Waits for the medium.
    ///
    /// Of a value with pages of its own, it loads all. A page may leave memory again at any time, and a
    /// small pool holds only some of many. Pages of a tablespace that was dropped are ignored.
    ///
    /// ```
    /// # fn main() -> braid::Result<()> {
    /// # let db = braid::Database::in_memory()?;
    /// # let t: braid::Table<u32, String> = db.open_table("t")?;
    /// use braid::{Error, MissingPages, Readable};
    /// let (load, missing) = std::sync::mpsc::channel::<MissingPages>();
    /// let loader = std::thread::spawn({
    ///     let db = db.clone();
    ///     move || missing.iter().try_for_each(|pages| db.load_pages(&pages))
    /// });
    /// let mut snapshot = db.snapshot();
    /// snapshot.set_nonblocking(true);
    /// match snapshot.get(&t, &1) {
    ///     // It reads again when they are loaded, and does something else until then.
    ///     Err(Error::NotInMemory(pages)) => load.send(pages).unwrap(),
    ///     found => println!("{:?}", found?),
    /// }
    /// # drop(load);
    /// # loader.join().unwrap()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed), [`Error::Corrupted`](crate::Error::Corrupted), and other
    /// errors of reading pages.
    pub fn load_pages(&self, missing: &MissingPages) -> Result<()> {
        let engine = self.engine();
        engine.check_open()?;
        match engine.store_of_space(missing.store()) {
            Some(store) => Ok(store.load_missing(missing)?),
            None => Ok(()),
        }
    }
}
