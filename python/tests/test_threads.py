"""Many threads, and the interpreter's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import SMALL

import braid

PROTOCOLS = ["serial", "aether", "epoch", "gsn", "glsn", "gwsn-strict", "gwsn"]


def together(threads: int, work: Callable[[int], None]) -> None:
    """Runs ``work`` on many threads that begin at once, and raises their exceptions."""
    barrier = threading.Barrier(threads)

    def begin(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(begin, range(threads)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_counters_lose_no_increment(path: Path, protocol: str) -> None:
    with braid.open(path, protocol=protocol, **SMALL) as db:  # type: ignore[arg-type]
        table = db.open_table("t", key=int, value=int)

        def work(number: int) -> None:
            for i in range(20):
                key = (number + i) % 3
                db.transact(lambda tx: tx.fetch_update(table, key, lambda old: (old or 0) + 1))

        together(8, work)
        assert sum(table.values()) == 160
    with braid.open(path, **SMALL) as db:
        assert sum(db.open_table("t", key=int, value=int).values()) == 160


def test_transfers_keep_the_sum(db: braid.Database) -> None:
    accounts = db.open_table("accounts", key=int, value=int)
    accounts.update((i, 100) for i in range(5))

    def work(number: int) -> None:
        for i in range(50):
            giver, taker = (number + i) % 5, (number * 3 + i * 2 + 1) % 5

            def move(tx: braid.Transaction) -> None:
                given, taken = tx.get(accounts, giver, 0), tx.get(accounts, taker, 0)
                if giver != taker:
                    tx.insert(accounts, giver, given - 1)
                    tx.insert(accounts, taker, taken + 1)

            db.transact(move)
            with db.snapshot() as snapshot:
                assert sum(balance for _, balance in snapshot.range(accounts)) == 500

    together(6, work)
    assert sum(accounts.values()) == 500


def test_a_wait_for_a_lock_lets_others_run(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    tx = db.begin()
    tx.insert(table, "a", 1)
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        table["a"] = 2

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    # This would deadlock if the waiting thread held the interpreter's lock.
    for _ in range(1000):
        assert tx.get(table, "a") == 1
    tx.commit()
    thread.join()
    assert table["a"] == 2


def test_two_threads_in_a_deadlock_continue(db: braid.Database) -> None:
    table = db.open_table("t", key=str, value=int)
    tries = 0
    both = threading.Barrier(2)

    def work(number: int) -> None:
        first, second = ("a", "b") if number else ("b", "a")
        first_try = True

        def body(tx: braid.Transaction) -> None:
            nonlocal tries, first_try
            tries += 1
            tx.fetch_update(table, first, lambda old: (old or 0) + 1)
            if first_try:
                first_try = False
                both.wait()
            tx.fetch_update(table, second, lambda old: (old or 0) + 1)

        db.transact(body)

    together(2, work)
    assert dict(table) == {"a": 2, "b": 2}
    assert tries > 2


def test_one_transaction_on_many_threads(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    tx = db.begin()

    def work(number: int) -> None:
        for i in range(100):
            tx.insert(table, number * 100 + i, i)
            assert tx.get(table, number * 100 + i) == i
            if i % 25 == 0:
                assert len(list(tx.range(table, number * 100, number * 100 + 100))) == i + 1

    together(4, work)
    tx.commit()
    assert len(table) == 400
    # All threads may write again.
    together(4, lambda number: table.__setitem__(number, 0))


def test_a_transaction_is_ended_once(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    for _ in range(20):
        tx = db.begin()
        tx.insert(table, 1, 1)
        ended: list[int] = []

        def work(number: int) -> None:
            try:
                ended.append(tx.commit())
            except braid.TransactionEndedError:
                pass

        together(4, work)
        assert len(ended) == 1


def test_one_iterator_on_many_threads(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    table.update((i, i) for i in range(5000))
    iterator = table.range()
    seen: list[int] = []
    together(4, lambda _: seen.extend(key for key, _ in iterator))
    assert sorted(seen) == list(range(5000))


def test_closing_while_others_work(path: Path) -> None:
    for _ in range(5):
        db = braid.open(path, **SMALL)
        table = db.open_table("t", key=int, value=int)
        refused: list[int] = []

        def work(number: int) -> None:
            try:
                for i in range(1_000_000):
                    if number == 0 and i == 20:
                        db.close()
                    table[number] = i
                    list(table.range())
                    with db.begin() as tx:
                        tx.insert(table, number, i)
            except braid.ClosedError:
                refused.append(number)

        together(4, work)
        assert sorted(refused) == [0, 1, 2, 3]


def test_checkpoints_alongside_commits(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        table = db.open_table("t", key=int, value=int)

        def work(number: int) -> None:
            for i in range(10):
                if number == 0:
                    db.checkpoint()
                table[number * 100 + i] = i
                db.stats()
                db.health()

        together(4, work)
        assert len(table) == 40


def test_waiting_for_one_ticket_on_many_threads(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)
    tx = db.begin()
    tx.insert(table, 1, 1)
    ticket = tx.commit_async()

    def work(number: int) -> None:
        assert ticket.wait() == ticket.seqno

    together(6, work)
    assert ticket.poll()
