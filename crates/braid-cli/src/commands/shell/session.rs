//! The commands of the shell.

use std::fs;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use braid::offline::Verify;
use braid::tablespace::TablespaceOptions;
use braid::{Bytes, Database, Error, Readable, Snapshot, Table, Transaction};

use super::parse;
use crate::commands::log_place::LogPlaceArgs;
use crate::commands::{stat, verify};
use crate::datum::{Column, canonical, from_literal, to_literal, typed_literal};
use crate::failure::Failure;
use crate::output::Output;
use crate::suggest::suggestion;

/// A command, as shown by `help` and completion.
pub(super) struct CommandText {
    pub(super) name: &'static str,
    /// Its arguments.
    pub(super) words: &'static str,
    pub(super) does: &'static str,
}

const fn command(name: &'static str, words: &'static str, does: &'static str) -> CommandText {
    CommandText { name, words, does }
}

pub(super) const COMMANDS: &[CommandText] = &[
    command("help", "[COMMAND]", "list the commands, or explain one"),
    command("tables", "", "list the tables and their types"),
    command(
        "create",
        "TABLE KEY-TYPE VALUE-TYPE [in TABLESPACE]",
        "create a table",
    ),
    command("drop", "TABLE", "drop a table with all of its entries"),
    command(
        "tablespaces",
        "",
        "list the tablespaces and their directories",
    ),
    command(
        "create-tablespace",
        "NAME DIRECTORY [POOL-MIB] [on node N] [with log [in DIRECTORY]]",
        "create a tablespace in an empty or missing directory, perhaps on a memory node, or with a log \
         of its own, there or in another directory",
    ),
    command(
        "drop-tablespace",
        "NAME",
        "drop a tablespace without tables, and remove its files",
    ),
    command(
        "move-table",
        "TABLE [TABLESPACE]",
        "move a table to a tablespace, or to the database's own directory",
    ),
    command("get", "TABLE KEY", "print the value of a key"),
    command("put", "TABLE KEY VALUE", "set the value of a key"),
    command(
        "add",
        "TABLE KEY VALUE",
        "insert an entry if the key is absent",
    ),
    command("delete", "TABLE KEY", "remove a key"),
    command(
        "scan",
        "TABLE [from KEY] [to KEY] [limit N] [reverse]",
        "print entries in key order, from `from` up to but not including `to`",
    ),
    command("count", "TABLE [from KEY] [to KEY]", "count entries"),
    command(
        "begin",
        "",
        "begin a transaction for the commands that follow",
    ),
    command("commit", "", "commit the transaction durably"),
    command("abort", "", "abort the transaction"),
    command(
        "snapshot",
        "",
        "read the current durable state until `release`",
    ),
    command("release", "", "read the newest state again"),
    command(
        "refresh",
        "",
        "with --read-only: move to what other processes have committed",
    ),
    command("stat", "", "print sizes and counters"),
    command("checkpoint", "", "write a checkpoint now"),
    command(
        "verify",
        "",
        "close the database, check it, and open it again",
    ),
    command("quit", "", "exit; an open transaction is aborted"),
];

/// Whether the shell continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    GoOn,
    Quit,
}

/// An open database, and the state of the session.
pub(super) struct Session {
    dir: PathBuf,
    read_only: bool,
    /// `None` if `verify` could not open it again.
    db: Option<Database>,
    tx: Option<Transaction>,
    snapshot: Option<Snapshot>,
}

/// A table and the types of its columns.
struct Typed {
    table: Table,
    key: Column,
    value: Column,
}

impl Typed {
    fn entry(&self, (key, value): &(Bytes, Bytes)) -> String {
        format!(
            "{} = {}",
            to_literal(&self.key, key),
            to_literal(&self.value, value)
        )
    }

    /// Encodes a literal to be stored, which must have the column's type. Lookups accept any bytes.
    fn written(column: &Column, word: &str) -> Result<Vec<u8>, Failure> {
        typed_literal(column, word).map_err(|mismatch| Failure::Failed(mismatch.to_string()))
    }
}

fn literal(column: &Column, word: &str) -> Result<Vec<u8>, Failure> {
    from_literal(column, word).map_err(|mismatch| Failure::Failed(mismatch.to_string()))
}

/// Arguments of `scan` and `count`.
struct Wanted {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    limit: usize,
    reverse: bool,
}

impl Wanted {
    fn parse(typed: &Typed, words: &[&str]) -> Result<Self, Failure> {
        let mut wanted = Wanted {
            from: Bound::Unbounded,
            to: Bound::Unbounded,
            limit: usize::MAX,
            reverse: false,
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            if word == "reverse" {
                wanted.reverse = true;
                continue;
            }
            let operand = words
                .next()
                .filter(|_| ["from", "to", "limit"].contains(&word));
            let Some(operand) = operand else {
                return Err(Failure::Failed(format!(
                    "cannot scan with {word}: give from KEY, to KEY, limit N or reverse"
                )));
            };
            match word {
                "from" => wanted.from = Bound::Included(literal(&typed.key, operand)?),
                "to" => wanted.to = Bound::Excluded(literal(&typed.key, operand)?),
                _ => {
                    let number = operand.parse();
                    wanted.limit = number.map_err(|_| {
                        Failure::Failed(format!("cannot scan with limit {operand}: not a number"))
                    })?;
                }
            }
        }
        Ok(wanted)
    }

    /// Calls `f` for each selected entry.
    fn each(
        self,
        reader: &impl Readable,
        table: &Table,
        mut f: impl FnMut((Bytes, Bytes)) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut range = reader.range(table, (self.from, self.to))?;
        for _ in 0..self.limit {
            let entry = if self.reverse {
                range.next_back()
            } else {
                range.next()
            };
            match entry {
                Some(entry) => f(entry?)?,
                None => break,
            }
        }
        Ok(())
    }
}

impl Session {
    pub(super) fn open(dir: &Path, create: bool, log: &LogPlaceArgs) -> Result<Self, Failure> {
        let builder = log.apply(Database::builder());
        let opened = builder.create_if_missing(create).open(dir);
        let db = opened.map_err(|error| match error {
            Error::NotADatabase { .. } if is_missing_or_empty(dir) => Failure::Failed(format!(
                "cannot open {}: there is no database; check the path, or add --create to create one",
                dir.display()
            )),
            error => error.into(),
        })?;
        Ok(Self::over(dir, db, false))
    }

    pub(super) fn open_read_only(dir: &Path, log: &LogPlaceArgs) -> Result<Self, Failure> {
        let db = log.apply(Database::builder()).open_read_only(dir)?;
        Ok(Self::over(dir, db, true))
    }

    fn over(dir: &Path, db: Database, read_only: bool) -> Self {
        Session {
            dir: dir.to_owned(),
            read_only,
            db: Some(db),
            tx: None,
            snapshot: None,
        }
    }

    fn refresh(&mut self, output: &mut Output) -> Result<(), Failure> {
        if self.tx.is_some() || self.snapshot.is_some() {
            return Err(Failure::Failed(
                "cannot refresh while a transaction or snapshot is open; commit or abort, and release, first".to_owned(),
            ));
        }
        let closed = || {
            Failure::Failed("cannot use the database: it is not open since `verify` failed; start the shell again".to_owned())
        };
        let db = self.db.as_mut().ok_or_else(closed)?;
        if !db.refresh()? {
            output.line("(nothing newer)")?;
        }
        Ok(())
    }

    /// Ends the session. An open transaction at this point is probably a mistake.
    pub(super) fn close(mut self) -> Result<(), Failure> {
        let open = self.tx.take().map(Transaction::abort);
        self.snapshot = None;
        if let Some(db) = self.db.take() {
            db.close()?;
        }
        match open {
            None => Ok(()),
            Some(()) => Err(Failure::Failed(
                "the open transaction was aborted: `commit` is missing".to_owned(),
            )),
        }
    }

    pub(super) fn prompt(&self) -> &'static str {
        match (&self.tx, &self.snapshot) {
            (Some(_), _) => "braid (transaction)> ",
            (None, Some(_)) => "braid (snapshot)> ",
            (None, None) => "braid> ",
        }
    }

    pub(super) fn table_names(&self) -> Result<Vec<String>, Failure> {
        Ok(self.db()?.table_names()?)
    }

    fn db(&self) -> Result<&Database, Failure> {
        let closed = || {
            Failure::Failed("cannot use the database: it is not open since `verify` failed; start the shell again".to_owned())
        };
        self.db.as_ref().ok_or_else(closed)
    }

    fn typed(&self, name: &str) -> Result<Typed, Failure> {
        let name = text(name)?;
        let Some(table) = self.db()?.untyped_table(&name)? else {
            return Err(no_table(self.db()?, &name)?);
        };
        let (key, value) = table.type_names();
        let (key, value) = (Column::key(key), Column::value(value));
        Ok(Typed { table, key, value })
    }

    /// Runs the commands of a line, up to the first that fails.
    pub(super) fn line(&mut self, line: &str, output: &mut Output) -> Result<Flow, Failure> {
        for words in parse::commands(line).map_err(Failure::Failed)? {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if self.command(&words, output)? == Flow::Quit {
                return Ok(Flow::Quit);
            }
        }
        Ok(Flow::GoOn)
    }

    fn command(&mut self, words: &[&str], output: &mut Output) -> Result<Flow, Failure> {
        match *words {
            ["quit" | "exit"] => return Ok(Flow::Quit),
            ["help"] => help(output)?,
            ["help", name] => {
                let text = COMMANDS.iter().find(|text| text.name == name);
                let text = text.ok_or_else(|| unknown(name))?;
                output.line(format_args!("{} {}: {}", text.name, text.words, text.does))?;
            }
            ["tables"] => self.tables(output)?,
            ["create", name, key, value] => self.create(name, key, value, None)?,
            ["create", name, key, value, "in", space] => {
                self.create(name, key, value, Some(space))?;
            }
            ["tablespaces"] => self.tablespaces(output)?,
            ["create-tablespace", name, directory, ref options @ ..] => {
                self.create_tablespace(name, directory, options)?;
            }
            ["drop-tablespace", name] => self.db()?.drop_tablespace(&text(name)?)?,
            ["move-table", name] => self.move_table(name, None, output)?,
            ["move-table", name, space] => self.move_table(name, Some(space), output)?,
            ["drop", name] => {
                let typed = self.typed(name)?;
                self.db()?.drop_table(&typed.table.name())?;
            }
            ["get", name, key] => self.get(name, key, output)?,
            ["put", name, key, value] => {
                let typed = self.typed(name)?;
                let key = Typed::written(&typed.key, key)?;
                let value = Typed::written(&typed.value, value)?;
                self.write(|tx| tx.insert(&typed.table, &key, &value))?;
            }
            ["add", name, key, value] => {
                let typed = self.typed(name)?;
                let key = Typed::written(&typed.key, key)?;
                let value = Typed::written(&typed.value, value)?;
                if !self.write(|tx| tx.insert_if_absent(&typed.table, &key, &value))? {
                    output.line("(exists already)")?;
                }
            }
            ["delete", name, key] => self.delete(name, key, output)?,
            ["scan", name, ref words @ ..] => {
                let typed = self.typed(name)?;
                let wanted = Wanted::parse(&typed, words)?;
                let show = |entry| output.line(typed.entry(&entry));
                self.each(&typed.table, wanted, show)?;
            }
            ["count", name, ref words @ ..] => {
                let typed = self.typed(name)?;
                let wanted = Wanted::parse(&typed, words)?;
                let mut count = 0_u64;
                self.each(&typed.table, wanted, |_| {
                    count += 1;
                    Ok(())
                })?;
                output.line(count)?;
            }
            ["begin"] => self.begin()?,
            ["commit"] => {
                let tx = self.tx.take().ok_or_else(no_transaction)?;
                tx.commit()?;
            }
            ["abort"] => self.tx.take().ok_or_else(no_transaction)?.abort(),
            ["snapshot"] => self.snapshot = Some(self.db()?.snapshot()),
            ["release"] => self.snapshot = None,
            ["refresh"] => self.refresh(output)?,
            ["stat"] => {
                for (name, value) in stat::rows(self.db()?, false)? {
                    output.line(format_args!("{name:<14}{value}"))?;
                }
            }
            ["checkpoint"] => self.db()?.checkpoint()?,
            ["verify"] => self.verify(output)?,
            [name, ..] => return Err(unknown(name)),
            [] => {}
        }
        Ok(Flow::GoOn)
    }

    fn tables(&self, output: &mut Output) -> Result<(), Failure> {
        let db = self.db()?;
        for name in self.table_names()? {
            match db.untyped_table(&name) {
                Ok(Some(table)) => {
                    let (key, value) = table.type_names();
                    let place = db.tablespace_of(&table)?;
                    let place = place.map_or_else(String::new, |place| format!(" in {place}"));
                    output.line(format_args!("{name}{place}: {key} -> {value}"))?;
                }
                // Another thread dropped it meanwhile.
                Ok(None) => {}
                // With --read-only, a tablespace may be missing.
                Err(Error::Tablespace(error)) => output.line(format_args!("{name}: {error}"))?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn tablespaces(&self, output: &mut Output) -> Result<(), Failure> {
        for space in self.db()?.stats().tablespaces {
            let directory = space.directory.as_ref();
            let place = directory.map_or("a device".into(), |path| path.display().to_string());
            let log = match &space.log_directory {
                Some(path) => format!(", with a log of its own in {}", path.display()),
                None if space.own_log => ", with a log of its own".to_owned(),
                None => String::new(),
            };
            let node = match space.memory_node {
                Some(node) if space.is_on_node => format!(", on memory node {node}"),
                Some(node) => format!(", on memory node {node}, which is not used"),
                None => String::new(),
            };
            output.line(format_args!("{}: {place}{node}{log}", space.name))?;
        }
        Ok(())
    }

    /// Moves a table, and says what was copied.
    fn move_table(
        &self,
        name: &str,
        space: Option<&str>,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let space = space.map(text).transpose()?;
        let report = self.db()?.move_table(&text(name)?, space.as_deref())?;
        output.line(format_args!(
            "copied {} records, {} bytes; writes waited for {:.1} ms at the end",
            report.records,
            report.bytes,
            report.writers_waited.as_secs_f64() * 1e3
        ))
    }

    fn create_tablespace(
        &self,
        name: &str,
        directory: &str,
        options: &[&str],
    ) -> Result<(), Failure> {
        let (options, own_log, log) = match options {
            [options @ .., "with", "log", "in", log] => (options, true, Some(log)),
            [options @ .., "with", "log"] => (options, true, None),
            options => (options, false, None),
        };
        let (options, node) = match options {
            [options @ .., "on", "node", node] => (options, Some(node)),
            options => (options, None),
        };
        let pool = match *options {
            [] => None,
            [mib] => Some(mib),
            _ => return Err(unknown("create-tablespace")),
        };
        let failed = |reason: String| {
            let name = text(name).unwrap_or_default();
            Failure::Failed(format!("cannot create tablespace {name:?}: {reason}"))
        };
        let mut options = TablespaceOptions::in_directory(text(directory)?).own_log(own_log);
        if let Some(log) = log {
            options = options.log_directory(text(log)?);
        }
        if let Some(node) = node {
            let wrong = |_| failed(format!("{node} is not the number of a memory node"));
            options = options.memory_node(node.parse().map_err(wrong)?);
        }
        if let Some(mib) = pool {
            let bytes = mib
                .parse()
                .ok()
                .and_then(|mib: usize| mib.checked_mul(1 << 20));
            let wrong = || {
                failed(format!(
                    "the size of its pool, {mib}, is not a number of MiB"
                ))
            };
            options = options.pool_bytes(bytes.ok_or_else(wrong)?);
        }
        Ok(self.db()?.create_tablespace(&text(name)?, options)?)
    }

    fn create(
        &self,
        name: &str,
        key: &str,
        value: &str,
        space: Option<&str>,
    ) -> Result<(), Failure> {
        let key = Column::key(&canonical(&text(key)?));
        let value = Column::value(&text(value)?);
        let unknown = |mismatch: crate::datum::Mismatch| {
            Failure::Failed(format!("cannot create table {name}: {mismatch}"))
        };
        key.check_known().map_err(unknown)?;
        value.check_known().map_err(unknown)?;
        let name = text(name)?;
        let (db, key, value) = (self.db()?, key.name(), value.name());
        let created = match space {
            None => db.create_untyped_table(&name, key, value),
            Some(space) => {
                db.create_untyped_table_in(&text(space)?, &name, key, value, Default::default())
            }
        };
        Ok(created.map(drop)?)
    }

    fn delete(&mut self, name: &str, key: &str, output: &mut Output) -> Result<(), Failure> {
        let typed = self.typed(name)?;
        let key = literal(&typed.key, key)?;
        let was_there = self.write(|tx| {
            let was_there = tx.contains_key(&typed.table, &key)?;
            tx.remove(&typed.table, &key)?;
            Ok(was_there)
        })?;
        if !was_there {
            output.line("(not found)")?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Failure> {
        if self.tx.is_some() {
            return Err(Failure::Failed(
                "cannot begin a transaction: one is open; commit or abort it first".to_owned(),
            ));
        }
        self.tx = Some(self.db()?.begin());
        Ok(())
    }

    fn get(&self, name: &str, key: &str, output: &mut Output) -> Result<(), Failure> {
        let typed = self.typed(name)?;
        let key = literal(&typed.key, key)?;
        let found = match (&self.tx, &self.snapshot) {
            (Some(tx), _) => tx.get(&typed.table, &key)?,
            (None, Some(snapshot)) => snapshot.get(&typed.table, &key)?,
            (None, None) => self.db()?.get(&typed.table, &key)?,
        };
        match found {
            Some(value) => output.line(to_literal(&typed.value, &value)),
            None => output.line("(not found)"),
        }
    }

    fn each(
        &self,
        table: &Table,
        wanted: Wanted,
        f: impl FnMut((Bytes, Bytes)) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match (&self.tx, &self.snapshot) {
            (Some(tx), _) => wanted.each(tx, table, f),
            (None, Some(snapshot)) => wanted.each(snapshot, table, f),
            (None, None) => wanted.each(&self.db()?.snapshot(), table, f),
        }
    }

    /// Writes in the open transaction, or in a new one.
    fn write<R>(
        &mut self,
        mut body: impl FnMut(&mut Transaction) -> braid::Result<R>,
    ) -> Result<R, Failure> {
        match &mut self.tx {
            Some(tx) => Ok(body(tx)?),
            None => Ok(self.db()?.transact(body)?),
        }
    }

    fn verify(&mut self, output: &mut Output) -> Result<(), Failure> {
        if self.tx.is_some() || self.snapshot.is_some() {
            return Err(Failure::Failed(
                "cannot verify while a transaction or snapshot is open; commit or abort, and release, first".to_owned(),
            ));
        }
        if let Some(db) = self.db.take() {
            db.close()?;
        }
        let found = verify::check(&self.dir, &Verify::new(), output);
        self.db = Some(if self.read_only {
            Database::open_read_only(&self.dir)?
        } else {
            Database::builder()
                .create_if_missing(false)
                .open(&self.dir)?
        });
        found
    }
}

/// Returns whether a database could be created in a directory.
fn is_missing_or_empty(dir: &Path) -> bool {
    match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Returns the error for a missing table, with a suggestion for a misspelt name.
pub(crate) fn no_table(db: &Database, name: &str) -> Result<Failure, Failure> {
    let names = db.table_names()?;
    let meant = suggestion(name, names.iter().map(String::as_str));
    Ok(Failure::Failed(format!(
        "there is no table {name:?}{meant}"
    )))
}

/// Returns a name, which may be quoted.
fn text(word: &str) -> Result<String, Failure> {
    let bytes = literal(&Column::key("string"), word)?;
    String::from_utf8(bytes)
        .map_err(|_| Failure::Failed(format!("cannot read {word}: it is not UTF-8")))
}

fn no_transaction() -> Failure {
    Failure::Failed("no transaction is open; begin one with `begin`".to_owned())
}

fn help(output: &mut Output) -> Result<(), Failure> {
    for text in COMMANDS {
        let usage = format!("{} {}", text.name, text.words);
        output.line(format_args!("  {usage:<56}{}", text.does))?;
    }
    output.line(
        "Write numbers as digits, and strings and bytes in quotes, with \\xNN for any byte; leave \
         the quotes out if there are no spaces, quotes or semicolons. A tuple is (PART, PART). # \
         begins a comment.",
    )
}

fn unknown(name: &str) -> Failure {
    match COMMANDS.iter().find(|text| text.name == name) {
        Some(text) => Failure::Failed(format!("usage: {} {}", text.name, text.words)),
        None => {
            let meant = suggestion(name, COMMANDS.iter().map(|text| text.name));
            Failure::Failed(format!(
                "there is no command {name:?}{meant}; `help` lists the commands"
            ))
        }
    }
}
