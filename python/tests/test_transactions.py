"""Transactions and snapshots."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support import SMALL

import braid


def test_a_block_commits_at_its_end_and_aborts_on_an_exception(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    with db.begin() as tx:
        tx.insert(table, "a", 1)
        tx.insert(table, "b", 2)
        assert tx.get(table, "a") == 1
        assert dict(table) == {}
    assert dict(table) == {"a": 1, "b": 2}
    with pytest.raises(ZeroDivisionError), db.begin() as tx:
        tx.insert(table, "c", 3)
        raise ZeroDivisionError
    assert dict(table) == {"a": 1, "b": 2}
    assert repr(tx) == "<braid.Transaction aborted>"


def test_a_block_whose_transaction_was_ended_is_left_as_it_is(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    with db.begin() as tx:
        tx.insert(table, "a", 1)
        number = tx.commit()
    assert db.durable_seqno >= number
    with db.begin() as tx:
        tx.insert(table, "b", 1)
        tx.abort()
    assert dict(table) == {"a": 1}


def test_an_ended_transaction_refuses_everything(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    for end in ("commit", "commit_async", "abort"):
        tx = db.begin()
        tx.insert(table, "a", 1)
        getattr(tx, end)()
        uses: list[Any] = [
            lambda: tx.get(table, "a"),
            lambda: tx.contains_key(table, "a"),
            lambda: tx.first(table),
            lambda: tx.last(table),
            lambda: tx.range(table),
            lambda: tx.prefix(table, "a"),
            lambda: tx.insert(table, "a", 1),
            lambda: tx.replace(table, "a", 1),
            lambda: tx.insert_if_absent(table, "a", 1),
            lambda: tx.remove(table, "a"),
            lambda: tx.take(table, "a"),
            lambda: tx.get_for_update(table, "a"),
            lambda: tx.compare_and_set(table, "a", 1, 2),
            lambda: tx.fetch_update(table, "a", lambda x: x),
            tx.commit,
            tx.commit_async,
            tx.abort,
            tx.__enter__,
        ]
        for use in uses:
            with pytest.raises(braid.TransactionEndedError, match="begin another"):
                use()


def test_the_writing_operations(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    with db.begin() as tx:
        assert tx.replace(table, "a", 1) is None
        assert tx.replace(table, "a", 2) == 1
        assert not tx.insert_if_absent(table, "a", 3)
        assert tx.insert_if_absent(table, "b", 3)
        assert tx.get_for_update(table, "b") == 3
        assert tx.get_for_update(table, "c") is None
        assert tx.get_for_update(table, "c", 7) == 7
        assert tx.remove(table, "b")
        assert not tx.remove(table, "b")
        assert tx.take(table, "b") is None
        assert tx.take(table, "b", "nothing") == "nothing"
        assert tx.take(table, "a") == 2
    assert dict(table) == {}
    with db.begin() as tx:
        assert not tx.compare_and_set(table, "a", 5, 6)
        assert tx.compare_and_set(table, "a", None, 6)
        assert not tx.compare_and_set(table, "a", None, 7)
        assert tx.compare_and_set(table, "a", 6, 8)
        assert tx.fetch_update(table, "a", lambda old: (old or 0) + 1) == 8
        assert tx.fetch_update(table, "b", lambda old: (old or 0) + 1) is None
        assert tx.fetch_update(table, "c", lambda old: old) is None
    assert dict(table) == {"a": 9, "b": 1}
    with db.begin() as tx:
        assert tx.compare_and_set(table, "a", 9, None)
        assert tx.fetch_update(table, "b", lambda _: None) == 1
    assert dict(table) == {}


def test_an_update_function_may_use_the_transaction_and_may_fail(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    with db.begin() as tx:
        tx.fetch_update(table, "a", lambda _: 1 if tx.insert_if_absent(table, "b", 2) else 0)
        with pytest.raises(ZeroDivisionError):
            tx.fetch_update(table, "a", lambda old: 1 // 0)
        with pytest.raises(TypeError):
            tx.fetch_update(table, "a", lambda old: "text")  # type: ignore[arg-type, return-value]
    assert dict(table) == {"a": 1, "b": 2}


def test_reading_a_transaction_and_a_snapshot(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    table.update({"aa": 1, "ab": 2, "b": 3})
    with db.snapshot() as snapshot, db.begin() as tx:
        tx.remove(table, "ab")
        tx.insert(table, "ac", 4)
        assert (tx.first(table), tx.last(table)) == (("aa", 1), ("b", 3))
        assert list(tx.prefix(table, "a")) == [("aa", 1), ("ac", 4)]
        assert list(tx.prefix(table, "a", reverse=True)) == [("ac", 4), ("aa", 1)]
        assert tx.contains_key(table, "ac") and not tx.contains_key(table, "ab")
        assert tx.get(table, "zz", 0) == 0
        tx.commit()
        assert list(snapshot.range(table)) == [("aa", 1), ("ab", 2), ("b", 3)]
        assert list(snapshot.prefix(table, "a")) == [("aa", 1), ("ab", 2)]
        assert snapshot.get(table, "ac") is None and snapshot.get(table, "ac", 5) == 5
        assert snapshot.contains_key(table, "ab")
        assert (snapshot.first(table), snapshot.last(table)) == (("aa", 1), ("b", 3))
        assert snapshot.seqno < tx_number(db)
    assert list(table) == ["aa", "ac", "b"]


def tx_number(db: braid.Database) -> int:
    with db.snapshot() as now:
        return now.seqno


def test_an_empty_table_has_no_ends(db: braid.Database) -> None:
    table = db.open_table("t")
    assert table.first() is None and table.last() is None
    with db.begin() as tx:
        assert tx.first(table) is None and tx.last(table) is None


def test_a_closed_snapshot_refuses_everything(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    table.update((i, i) for i in range(100))
    with db.snapshot() as snapshot:
        begun = snapshot.range(table)
        assert next(begun) == (0, 0)
    assert db.stats().snapshots == 0
    with pytest.raises(braid.ClosedError):
        next(begun)
    with pytest.raises(StopIteration):
        next(begun)
    for use in (
        lambda: snapshot.get(table, 1),
        lambda: snapshot.range(table),
        lambda: snapshot.first(table),
    ):
        with pytest.raises(braid.ClosedError, match="snapshot is closed"):
            use()
    snapshot.close()


def test_an_iterator_keeps_its_snapshot(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    table.update((i, i) for i in range(1000))
    iterator = table.range()
    assert next(iterator) == (0, 0)
    table.clear()
    gc.collect()
    assert [key for key, _ in iterator] == list(range(1, 1000))
    assert db.stats().snapshots == 1
    del iterator
    assert db.stats().snapshots == 0


@pytest.mark.parametrize("reverse", [False, True])
def test_an_iteration_of_a_transaction_sees_its_writes(db: braid.Database, reverse: bool) -> None:
    table = db.open_table("t", key=int, value=int)
    table.update((i, 0) for i in range(0, 300, 2))
    with db.begin() as tx:
        seen = []
        for key, _ in tx.range(table, reverse=reverse):
            seen.append(key)
            if key % 6 == 0:
                assert tx.remove(table, key)
                ahead = -1 if reverse else 1
                tx.insert(table, key + ahead, 1)  # comes next
                tx.insert(table, key - ahead, 1)  # is behind
    expected = sorted([*range(0, 300, 2), *(k + (-1 if reverse else 1) for k in range(0, 300, 6))])
    assert seen == (expected[::-1] if reverse else expected)
    with db.begin() as tx:
        iterator = tx.range(table)
        next(iterator)
        tx.abort()
        with pytest.raises(braid.TransactionEndedError):
            next(iterator)


def test_everything_can_be_removed_while_it_is_iterated_over(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    table.update((i, i) for i in range(500))
    with db.begin() as tx:
        for key, _ in tx.range(table):
            tx.remove(table, key)
    assert not table


def test_conflicts(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    table["a"] = 0
    tx = db.begin()
    assert tx.get(table, "a") == 0
    table["a"] = 1
    tx.insert(table, "b", 0)
    with pytest.raises(braid.ConflictError, match="run it again") as error:
        tx.commit()
    assert error.value.kind == "read"
    with pytest.raises(braid.TransactionEndedError):
        tx.commit()
    tx = db.begin()
    assert len(list(tx.range(table))) == 1
    table["c"] = 1
    tx.insert(table, "b", 0)
    with pytest.raises(braid.ConflictError) as error:
        tx.commit()
    assert error.value.kind == "range"
    tx = db.begin(isolation="snapshot")
    table["a"] = 2
    assert tx.get(table, "a") == 1
    with pytest.raises(braid.ConflictError) as error:
        tx.insert(table, "a", 3)
    assert error.value.kind == "write"
    tx.abort()
    assert dict(table) == {"a": 2, "c": 1}
    assert db.stats().conflicts == 3


def test_transact_runs_again_after_a_conflict(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    table["a"] = 0
    tries = 0

    def body(tx: braid.Transaction) -> str:
        nonlocal tries
        tries += 1
        seen = tx.get(table, "a", 0)
        if tries < 4:
            table["a"] = seen + 100
        tx.insert(table, "a", seen + 1)
        return f"try {tries}"

    assert db.transact(body) == "try 4"
    assert table["a"] == 301


def test_transact_lets_other_exceptions_pass_and_leaves_nothing(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)

    def body(tx: braid.Transaction) -> None:
        tx.insert(table, "a", 1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        db.transact(body)
    assert not table
    table["a"] = 2  # no lock was left behind
    with pytest.raises(TypeError):
        db.transact(5)  # type: ignore[arg-type]

    def commits(tx: braid.Transaction) -> braid.Ticket:
        tx.insert(table, "b", 1)
        return tx.commit_async()

    ticket = db.transact(commits)
    assert ticket.wait() == ticket.seqno
    db.transact(lambda tx: tx.abort())


def test_a_second_writer_of_a_thread_is_an_error_not_a_hang(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    with db.begin() as tx, db.begin() as other:
        tx.insert(table, "a", 1)
        uses: list[Any] = [
            lambda: other.insert(table, "a", 2),
            lambda: other.get_for_update(table, "b"),
            lambda: table.__setitem__("a", 2),
            lambda: table.pop("b", None),
            lambda: table.update(a=1),
            lambda: table.clear(),
            lambda: db.open_table("new"),
            lambda: db.drop_table("t"),
            lambda: db.rename_table("t", "u"),
        ]
        for use in uses:
            with pytest.raises(braid.WouldDeadlockError, match="through that transaction"):
                use()
        assert db.open_table("t", key=str, value=int) == {}
        assert other.get(table, "a") is None
        other.abort()
    table["a"] = 3
    unreferenced: Any = db.begin()
    unreferenced.insert(table, "b", 1)
    unreferenced = None
    gc.collect()
    table["b"] = 2
    assert dict(table) == {"a": 3, "b": 2}


def test_a_lock_timeout(path: Path) -> None:
    with braid.open(path, lock_timeout=timedelta(0), **SMALL) as db:
        table = db.open_table("t", key=str, value=int)

        def wait(**options: Any) -> None:
            with db.begin(**options) as tx:
                tx.insert(table, "a", 2)

        with db.begin() as holder, ThreadPoolExecutor(1) as threads:
            holder.insert(table, "a", 1)
            for options in ({}, {"lock_timeout": timedelta(milliseconds=5)}):
                error = threads.submit(wait, **options).exception()
                assert isinstance(error, braid.LockTimeoutError)
                assert isinstance(error, TimeoutError)
                assert "wait longer" in str(error)
        with pytest.raises(TypeError, match="lock_timeout"):
            wait(lock_timeout=5)
        wait()
        assert table["a"] == 2


def test_a_snapshot_ends_beyond_the_limit(path: Path) -> None:
    with braid.open(path, max_version_bytes=10_000, **SMALL) as db:
        table = db.open_table("t", key=int, value=bytes)
        table.update({key: bytes(100) for key in range(200)})
        snapshot = db.snapshot()
        assert next(snapshot.range(table)) == (0, bytes(100))
        # A background thread applies the limit.
        while db.stats().snapshots_ended == 0:
            table.update({key: bytes(101) for key in range(200)})
        with pytest.raises(braid.SnapshotTooOldError, match="raise max_version_bytes"):
            snapshot.get(table, 0)
        with pytest.raises(braid.SnapshotTooOldError):
            next(snapshot.range(table))
        assert db.stats().old_version_bytes >= 0
        assert db.snapshot().get(table, 0) == bytes(101)


@pytest.mark.parametrize("durability", ["immediate", "none", timedelta(milliseconds=5)])
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_durability_and_isolation(db: braid.Database, durability: Any, isolation: Any) -> None:
    table = db.open_table("t", key=str, value=int)
    with db.begin(durability=durability, isolation=isolation) as tx:
        tx.insert(table, "a", 1)
    db.transact(
        lambda tx: tx.insert(table, "b", 1), durability=durability, isolation=isolation
    )
    db.sync()
    assert dict(table) == {"a": 1, "b": 1}


def test_tickets(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    tx = db.begin()
    tx.insert(table, "a", 1)
    ticket = tx.commit_async()
    with db.begin() as reader:
        assert reader.get(table, "a") == 1
    assert ticket.wait() == ticket.wait() == ticket.seqno
    assert ticket.poll()
    assert table["a"] == 1
    assert db.durable_seqno >= ticket.seqno
    assert repr(ticket) == f"<braid.Ticket {ticket.seqno}>"
    # A transaction whose ticket is dropped becomes durable all the same.
    tx = db.begin()
    tx.insert(table, "a", 2)
    tx.commit_async()
    while table["a"] != 2:
        pass


def test_removing_a_range(db: braid.Database) -> None:
    days = db.open_table("days", key=int, value=str)
    days.update((day, "some day") for day in range(1, 32))
    with db.begin() as tx:
        ahead = tx.range(days)
        assert next(ahead) == (1, "some day")
        assert tx.remove_range(days, 8, 15) == 7
        assert [day for day, _ in ahead] == [*range(2, 8), *range(15, 32)]
        assert tx.remove_range(days, 30, 31, include_stop=True) == 2
        assert tx.remove_range(days, 100) == 0
    assert list(days) == [*range(1, 8), *range(15, 30)]
    with db.begin() as tx:
        assert tx.remove_range(days) == 22
        with pytest.raises(TypeError):
            tx.remove_range(days, "monday")  # type: ignore[misc]
    assert not days
