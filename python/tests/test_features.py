"""Savepoints, reading only, options of tables, bulk loads, named snapshots, changes and feeds."""

from __future__ import annotations

import pickle
import stat
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support import SMALL

import braid


# Savepoints -------------------------------------------------------------------------------------------


def test_a_savepoint_undoes_later_writes(db: braid.Database) -> None:
    stock = db.open_table("stock", key=str, value=int)
    with db.begin() as tx:
        tx.insert(stock, "apples", 3)
        savepoint = tx.savepoint()
        tx.insert(stock, "apples", 2)
        tx.insert(stock, "pears", 7)
        savepoint.rollback()
        assert tx.get(stock, "apples") == 3
        assert not tx.contains_key(stock, "pears")
        tx.insert(stock, "plums", 1)
        savepoint.rollback()
    assert dict(stock) == {"apples": 3}


def test_an_exception_takes_back_the_block_and_not_the_transaction(db: braid.Database) -> None:
    stock = db.open_table("stock", key=str, value=int)
    with db.begin() as tx:
        tx.insert(stock, "apples", 3)
        with pytest.raises(KeyError, match="mine"):
            with tx.savepoint():
                tx.insert(stock, "pears", 7)
                raise KeyError("mine")
        with tx.savepoint():
            tx.insert(stock, "plums", 1)
    assert dict(stock) == {"apples": 3, "plums": 1}


def test_an_iterator_sees_the_rollback(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    with db.begin() as tx:
        tx.insert(table, 1, 1)
        savepoint = tx.savepoint()
        tx.insert(table, 2, 2)
        iterator = tx.range(table)
        assert next(iterator) == (1, 1)
        savepoint.rollback()
        assert list(iterator) == []


def test_savepoints_that_are_gone(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    tx = db.begin()
    outer = tx.savepoint()
    tx.insert(table, 1, 1)
    inner = tx.savepoint()
    outer.rollback()
    with pytest.raises(braid.SavepointError):
        inner.rollback()
    with outer:
        tx.commit()
    with pytest.raises(braid.TransactionEndedError):
        outer.rollback()
    with pytest.raises(braid.TransactionEndedError):
        tx.savepoint()
    # The exception of the block propagates, not an error about the ended transaction.
    other = db.begin()
    with pytest.raises(ValueError, match="mine"), other.savepoint():
        other.abort()
        raise ValueError("mine")


# Many at once -----------------------------------------------------------------------------------------


def test_insert_many(db: braid.Database) -> None:
    table, empty = (db.open_table(name, key=int, value=str) for name in ("t", "empty"))
    with db.begin() as tx:
        tx.insert_many(table, {1: "one", 2: "two"})
        tx.insert_many(table, [(3, "three")])
        tx.insert_many(table, ([n, str(n)] for n in range(4, 6)))  # type: ignore[misc]
        tx.insert_many(table, empty)
    assert dict(table) == {1: "one", 2: "two", 3: "three", 4: "4", 5: "5"}
    with db.begin() as tx:
        tx.insert_many(table, table)
        with pytest.raises(ValueError, match="entry 1 has 3 items"):
            tx.insert_many(table, [(6, "x"), (7, "y", "z")])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="a value of this table must be str, not int"):
            tx.insert_many(table, {6: 6})  # type: ignore[misc]
        with pytest.raises(TypeError):
            tx.insert_many(table, 7)  # type: ignore[arg-type]
        assert not tx.contains_key(table, 6)
    with pytest.raises(braid.TransactionEndedError):
        tx.insert_many(table, {})


# Reading only -----------------------------------------------------------------------------------------


def test_reading_only(path: Path) -> None:
    with pytest.raises(braid.NotADatabaseError):
        braid.open(path, read_only=True)
    with braid.open(path, **SMALL) as db:
        db.open_table("t", key=int, value=int)[1] = 1
    before = {file: file.read_bytes() for file in path.iterdir()}
    with braid.open(path, read_only=True, **SMALL) as db:
        table = db.open_table("t", key=int, value=int)
        assert table[1] == 1
        for write in (
            lambda: table.__setitem__(1, 2),
            lambda: table.update({1: 2}),
            lambda: db.open_table("other"),
            lambda: db.drop_table("t"),
            lambda: db.checkpoint(),
            lambda: db.bulk_load("other"),
            lambda: db.feed("feed"),
        ):
            with pytest.raises(braid.OpenedReadOnlyError):
                write()
    assert {file: file.read_bytes() for file in path.iterdir()} == before
    with pytest.raises(braid.OptionError, match="read_only"):
        braid.in_memory(read_only=True)


def test_refresh_follows_a_writer(path: Path) -> None:
    with braid.open(path, **SMALL) as writer, braid.open(path, **SMALL, read_only=True) as reader:
        assert not writer.refresh()
        table = writer.open_table("t", key=int, value=int)
        table[1] = 1
        assert reader.existing_table("t") is None
        if not sys.platform.startswith("linux"):
            return
        assert reader.refresh()
        assert not reader.refresh()
        read = reader.open_table("t", key=int, value=int)
        assert dict(read) == {1: 1}
        before = reader.snapshot()
        old = reader.begin()
        iterator = iter(read.items())
        for n in range(2, 6):
            table[n] = n
            assert read.get(n) is None
            assert reader.refresh()
            # The same handle of the table shows the new state.
            assert read[n] == n
            assert read.get_many([1, n, n + 1]) == [1, n, None]
            assert len(read) == n
            assert read.estimate().entries == n
            assert reader.durable_seqno == writer.durable_seqno
        # Open snapshots keep their state, with any handle of a table.
        assert list(iterator) == [(1, 1)]
        for handle in (read, reader.open_table("t", key=int, value=int)):
            assert list(before.range(handle)) == [(1, 1)]
            assert before.get(handle, 2) is None
            assert old.get(handle, 1) == 1
            assert old.get(handle, 2) is None
        writer.rename_table("t", "u")
        writer.open_table("v", key=int, value=int)[1] = 7
        assert reader.refresh()
        assert read[5] == 5
        assert reader.table_names() == ["u", "v"]
        later = reader.open_table("v", key=int, value=int)
        with pytest.raises(braid.TableDroppedError, match="v"):
            before.get(later, 1)
        writer.drop_table("u")
        assert reader.refresh()
        with pytest.raises(braid.TableDroppedError, match="t"):
            read[5]
        assert list(before.range(read)) == [(1, 1)]
        reader.close()
        uses: list[Callable[[], object]] = [
            lambda: before.get(read, 1),
            lambda: old.get(read, 1),
            lambda: reader.refresh(),
            lambda: read[1],
        ]
        for use in uses:
            with pytest.raises(braid.ClosedError):
                use()


def test_tables_of_another_database_are_refused(path: Path) -> None:
    with braid.open(path / "a", **SMALL) as one, braid.open(path / "b", **SMALL) as two:
        for db in (one, two):
            db.open_table("t", key=int, value=int)[1] = 1
    with (
        braid.open(path / "a", **SMALL, read_only=True) as one,
        braid.open(path / "b", **SMALL, read_only=True) as two,
        two.snapshot() as snapshot,
        pytest.raises(braid.ForeignTableError),
    ):
        snapshot.get(one.open_table("t", key=int, value=int), 1)


# Permissions ------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such permissions")
def test_file_mode(path: Path) -> None:
    def modes(directory: Path) -> set[int]:
        # LOCK is subject to the umask: a reader may have created it.
        files = [file for file in directory.iterdir() if file.name != "LOCK"]
        return {stat.S_IMODE(file.stat().st_mode) for file in files}

    for name, given, files, directory in (
        ("default", {}, 0o600, 0o700),
        ("group", {"file_mode": 0o640}, 0o640, 0o750),
    ):
        options: Any = {**SMALL, **given}
        with braid.open(path / name, **options) as db:
            db.open_table("t", key=int, value=int)[1] = 1
            backup = path / f"{name}.backup"
            db.backup(backup)
        restored = path / f"{name}.restored"
        restore: Any = given
        braid.restore([backup], restored, **restore)
        assert stat.S_IMODE(backup.stat().st_mode) == files
        for place in (path / name, restored):
            assert modes(place) == {files}
            assert stat.S_IMODE(place.stat().st_mode) == directory
    for mode in (0, 0o440, 0o700, 0o1600):
        with pytest.raises(braid.OptionError, match="file_mode"):
            braid.open(path / "wrong", file_mode=mode)
        with pytest.raises(braid.OptionError, match="file_mode"):
            braid.restore([backup], path / "wrong", file_mode=mode)
    with pytest.raises(TypeError, match="file_mode"):
        braid.open(path / "wrong", file_mode="0600")  # type: ignore[arg-type]
    assert not (path / "wrong").exists()


# Options of tables ------------------------------------------------------------------------------------


def test_compression(db: braid.Database) -> None:
    pages = db.open_table("pages", key=int, value=bytes, compression="lz4")
    pages[1] = b"a" * 10_000
    assert pages[1] == b"a" * 10_000
    assert (pages.compression, pages.time_to_live) == ("lz4", None)
    assert db.open_table("pages", key=int, value=bytes).compression == "lz4"
    with pytest.raises(braid.TableOptionsError):
        db.open_table("pages", key=int, value=bytes, time_to_live=timedelta(1))
    with pytest.raises(braid.OptionError, match="compression"):
        db.open_table("x", compression="zip")  # type: ignore[call-overload]
    assert db.open_table("plain").compression is None


def test_time_to_live(db: braid.Database) -> None:
    sessions = db.open_table("sessions", key=int, value=str, time_to_live=timedelta(milliseconds=1))
    assert sessions.time_to_live == timedelta(milliseconds=1)
    sessions[1] = "ada"
    while 1 in sessions:
        pass
    assert list(sessions) == []
    # A background thread may have removed the entry first.
    assert db.remove_expired() + db.remove_expired() <= 1
    assert db.stats().expired <= 1
    for wrong in (timedelta(0), timedelta(-1)):
        with pytest.raises(braid.OptionError, match="time_to_live"):
            db.open_table("x", time_to_live=wrong)
    with pytest.raises(TypeError, match="time_to_live"):
        db.open_table("x", time_to_live=1)  # type: ignore[call-overload]
    assert db.table_names() == ["sessions"]


# Bulk loads -------------------------------------------------------------------------------------------


def test_a_bulk_load(db: braid.Database) -> None:
    before = db.snapshot()
    loader = db.bulk_load("squares", key=braid.u32, value=int, compression="lz4")
    loader.insert(0, 0)
    loader.extend((n, n * n) for n in range(1, 100_000))
    loader.extend({200_000: 1})
    assert len(loader) == 100_001 and loader
    assert db.table_names() == []
    squares = loader.finish()
    assert squares[77] == 77 * 77 and len(squares) == 100_001
    assert squares.key_type == braid.u32 and squares.compression == "lz4"
    assert list(before.range(squares)) == []
    assert db.open_table("squares", key=braid.u32, value=int)[200_000] == 1
    for use in (
        lambda: loader.insert(1, 1),
        lambda: loader.extend([]),
        lambda: len(loader),
        lambda: loader.finish(),
    ):
        with pytest.raises(braid.ClosedError):
            use()
    loader.abort()
    with pytest.raises(braid.TableExistsError):
        db.bulk_load("squares")


def test_a_bulk_load_as_a_block(db: braid.Database) -> None:
    with db.bulk_load("t", key=str, value=str) as loader:
        loader.insert("a", "1")
        with pytest.raises(braid.OutOfOrderError):
            loader.insert("a", "2")
        with pytest.raises(TypeError):
            loader.insert("b", 2)  # type: ignore[arg-type]
        with pytest.raises(braid.OutOfOrderError):
            loader.extend([("c", "3"), ("b", "2"), ("d", "4")])
        loader.insert("e", "5")
    assert dict(db.open_table("t", key=str, value=str)) == {"a": "1", "c": "3", "e": "5"}
    with pytest.raises(ValueError, match="mine"):
        with db.bulk_load("never") as nothing:
            nothing.insert(b"k", b"v")
            raise ValueError("mine")
    with db.bulk_load("aborted") as aborted:
        aborted.abort()
    assert db.table_names() == ["t"]


# Named snapshots --------------------------------------------------------------------------------------


def test_named_snapshots(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    table[1] = 1
    with db.create_snapshot("monday") as monday:
        table[1] = 2
        assert monday.get(table, 1) == 1
    db.create_snapshot("tuesday")
    assert db.snapshot_names() == ["monday", "tuesday"]
    with pytest.raises(braid.SnapshotExistsError):
        db.create_snapshot("monday")
    found = db.open_snapshot("monday")
    assert db.drop_snapshot("monday")
    assert not db.drop_snapshot("monday")
    assert found.get(table, 1) == 1
    with pytest.raises(LookupError):
        db.open_snapshot("monday")
    with pytest.raises(TypeError):
        db.create_snapshot(7)  # type: ignore[arg-type]
    db.close()
    for use in (lambda: db.create_snapshot("x"), lambda: db.snapshot_names()):
        with pytest.raises(braid.ClosedError):
            use()


# Changes ----------------------------------------------------------------------------------------------


def test_changes(db: braid.Database) -> None:
    stock = db.open_table("stock", key=str, value=int)
    changes = db.changes()
    start = changes.position
    assert list(changes) == []
    with db.begin() as tx:
        tx.insert(stock, "cups", 12)
        tx.insert(stock, "tea", 1)
    del stock["tea"]
    first, second = changes
    assert [(c.table, c.key, c.value) for c in first.changes] == [
        ("stock", "cups", 12),
        ("stock", "tea", 1),
    ]
    assert [(c.key, c.value) for c in second.changes] == [("tea", None)]
    assert first.seqno < second.seqno == second.position.seqno
    assert changes.position == second.position and first.loaded == []
    assert "'cups' -> 12" in repr(first.changes[0]) and "2 changes" in repr(first)
    # From a stored position.
    for stored in (
        braid.Position(str(first.position)),
        braid.Position.from_bytes(first.position.to_bytes()),
        pickle.loads(pickle.dumps(first.position)),
        db.position(first.seqno),
    ):
        assert stored == first.position and hash(stored) == hash(first.position)
        assert [s.seqno for s in db.changes(stored)] == [second.seqno]
    assert start == db.position(start.seqno) != first.position
    assert db.oldest_position().seqno <= start.seqno
    # A loaded table is reported by name, and the keys of a dropped one as bytes.
    with db.bulk_load("loaded", key=int, value=int) as loader:
        loader.insert(1, 1)
    (loaded,) = changes
    assert loaded.loaded == ["loaded"] and loaded.changes == []
    stock["gone"] = 1
    db.drop_table("stock")
    (late,) = db.changes(loaded.position)
    assert late.changes[0].table is None and late.changes[0].key == b"gone"
    assert isinstance(late.changes[0].table_id, int)


def test_waiting_for_changes(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    with db.changes() as changes:
        assert changes.next_within(timedelta(0)) is None
        assert changes.next_within(timedelta(milliseconds=1)) is None
        writer = threading.Thread(target=lambda: table.__setitem__(1, 1))
        writer.start()
        found = changes.next_within(timedelta.max)
        writer.join()
        assert found is not None and found.changes[0].key == 1
        with pytest.raises(TypeError):
            changes.next_within(1)  # type: ignore[arg-type]
    for use in (
        lambda: next(changes),
        lambda: changes.next_within(timedelta(1)),
        lambda: changes.position,
    ):
        with pytest.raises(braid.ClosedError, match="reader"):
            use()


def test_wrong_positions(db: braid.Database) -> None:
    with braid.in_memory(**SMALL) as other, pytest.raises(braid.ForeignPositionError):
        db.changes(other.position())
    with pytest.raises(braid.ForeignPositionError):
        db.changes(db.position(10**9))
    with pytest.raises(braid.DecodeError):
        braid.Position("nonsense")
    with pytest.raises((TypeError, ValueError)):
        braid.Position.from_bytes(b"short")
    with pytest.raises(TypeError):
        db.changes(7)  # type: ignore[arg-type]
    reader = db.changes()
    db.close()
    with pytest.raises(braid.ClosedError):
        next(reader)


def test_feeds(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        table = db.open_table("t", key=int, value=int)
        feed = db.feed("index")
        table[1] = 1
        table[2] = 2
        first = next(feed.changes())
        feed.acknowledge(first.position)
        assert feed.position() == first.position == db.feeds()["index"]
        assert feed.name == "index" and "index" in repr(feed)
    with pytest.raises(braid.ClosedError):
        feed.position()
    with braid.open(path, **SMALL) as db:
        feed = db.feed("index")
        assert [change.key for s in feed.changes() for change in s.changes] == [2]
        with pytest.raises(TypeError):
            feed.acknowledge(7)  # type: ignore[arg-type]
        table = db.open_table("t", key=int, value=int)
        with db.begin() as tx:
            tx.insert(table, 3, 3)
            for use in (lambda: db.feed("other"), lambda: feed.acknowledge(first.position)):
                with pytest.raises(braid.WouldDeadlockError):
                    use()
        assert db.drop_feed("index") and not db.drop_feed("index")
        with pytest.raises(braid.FeedNotFoundError):
            feed.changes()
        with pytest.raises(braid.TableNameError):
            db.feed("")
        assert db.feeds() == {}


# Readers that fall behind -----------------------------------------------------------------------


def test_a_reader_that_is_too_slow(path: Path) -> None:
    options: Any = {
        **SMALL,
        "feed_log_bytes": 1,
        "segment_bytes": 64 << 10,
        "checkpoint_log_bytes": 64 << 10,
    }
    with braid.open(path, **options) as db:
        table = db.open_table("t", key=int, value=bytes)
        feed = db.feed("slow")
        for _ in range(20):
            table.update((n, bytes(1000)) for n in range(100))
            db.checkpoint()
        with pytest.raises(braid.PositionLostError):
            list(feed.changes())
