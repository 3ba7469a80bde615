"""Children that are killed, and children made by fork."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support import SMALL

import braid

CHILD = """
import sys, threading
import braid

db = braid.open(sys.argv[1], pool_bytes=4 << 20, segment_bytes=1 << 20)
table = db.open_table("t", key=int, value=braid.u64)
say = threading.Lock()

def work(number):
    for i in range(10**9):
        def body(tx):
            tx.insert(table, number, i)
            tx.insert(table, number + 100, i)
        db.transact(body)
        with say:
            print(number, i, flush=True)  # acknowledged

for number in range(4):
    threading.Thread(target=work, args=(number,)).start()
"""


def test_acknowledged_transactions_survive_kill_9(path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, path], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        acknowledged: dict[int, int] = {}
        lines = rng.randrange(20, 400)
        for at, line in enumerate(child.stdout):
            if at == lines:
                child.send_signal(signal.SIGKILL)
            if line.endswith("\n"):
                writer, written = map(int, line.split())
                acknowledged[writer] = written
        assert child.wait() == -signal.SIGKILL
        assert sum(acknowledged.values()) >= lines - 8
        assert braid.verify(path).findings == []
        with braid.open(path, create_if_missing=False, **SMALL) as db:
            assert db.recovery().transactions > 0
            table = db.open_table("t", key=int, value=braid.u64, create=False)
            for number, i in acknowledged.items():
                # One more may have been committed without being reported.
                assert table[number] in (i, i + 1)
            for number in range(4):
                assert table.get(number) == table.get(number + 100), "both or none"


def in_child(work: Callable[[], None]) -> None:
    """Runs ``work`` in a child made by fork; fails if the child fails or takes half a minute."""
    child = os.fork()
    if child == 0:
        code = 1
        # The system kills the child, wherever it hangs, and the parent continues.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            work()
            code = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def refuses(*uses: Callable[[], object]) -> None:
    for use in uses:
        with pytest.raises(braid.ForkError):
            use()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_made_by_fork_leaves_the_database_alone(path: Path) -> None:
    db = braid.open(path, **SMALL)
    table = db.open_table("t", key=int, value=int)
    table[1] = 1
    open_tx, snapshot, iterator = db.begin(), db.snapshot(), table.range()
    changes, feed, loader = db.changes(), db.feed("feed"), db.bulk_load("new")
    savepoint = open_tx.savepoint()
    open_tx.insert(table, 2, 2)
    other_tx = db.begin()
    asynchronous = db.begin(durability="none")
    ticket = asynchronous.commit_async()

    def child() -> None:
        nonlocal db, table, open_tx, snapshot, iterator, other_tx, savepoint
        nonlocal changes, feed, loader, ticket
        with pytest.raises(braid.ClosedError, match="parent process"):
            table.get(1)
        refuses(
            lambda: table[1],
            lambda: table.__setitem__(1, 2),
            lambda: table.update({}),
            lambda: open_tx.get(table, 1),
            lambda: open_tx.insert_many(table, {}),
            lambda: open_tx.commit(),
            lambda: other_tx.abort(),
            lambda: savepoint.rollback(),
            lambda: snapshot.get(table, 1),
            lambda: snapshot.close(),
            lambda: next(iterator),
            lambda: next(changes),
            lambda: changes.position,
            lambda: feed.changes(),
            lambda: feed.acknowledge(braid.Position("00:1")),
            lambda: loader.insert(b"k", b"v"),
            lambda: loader.finish(),
            lambda: ticket.poll(),
            lambda: ticket.wait(),
            lambda: db.begin(),
            lambda: db.close(),
            lambda: db.stats(),
            lambda: db.checkpoint(),
            lambda: db.backup(path.with_name("backup")),
            # Neither this database nor another one: any lock could be held.
            lambda: braid.open(path, **SMALL),
            lambda: braid.open(path.with_name("other"), **SMALL),
            lambda: braid.in_memory(),
            lambda: braid.verify(path),
            lambda: braid.restore([], path),
        )
        # Dropping these writes nothing to the parent's files.
        del db, table, open_tx, snapshot, iterator, other_tx, savepoint
        del changes, feed, loader, ticket

    before = (path / "data.braid").read_bytes()
    in_child(child)
    assert (path / "data.braid").read_bytes() == before
    assert not path.with_name("other").exists()
    open_tx.commit()
    loader.abort()
    assert list(iterator) == [(1, 1)]
    assert dict(table) == {1: 1, 2: 2}
    db.close()
    assert braid.verify(path).findings == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_waits_for_no_lock_that_a_thread_held(path: Path) -> None:
    """At each fork, one thread waits for a key, and others are anywhere in the engine."""
    db = braid.open(path, **SMALL)
    table = db.open_table("t", key=int, value=int)
    holder, waiting = db.begin(), db.begin()
    holder.insert(table, 0, 0)
    about_to, stop = threading.Event(), threading.Event()

    def wait_for_the_key() -> None:
        about_to.set()
        waiting.insert(table, 0, 1)
        waiting.commit()

    def write(number: int) -> None:
        while not stop.is_set():
            with db.begin() as tx:
                tx.insert(table, number, number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 4)]
    threads.append(threading.Thread(target=wait_for_the_key))
    for thread in threads:
        thread.start()
    about_to.wait()

    def child() -> None:
        # Its mutex is held from the moment that the thread above began to write.
        refuses(
            lambda: waiting.get(table, 0),
            lambda: waiting.abort(),
            lambda: holder.commit(),
            lambda: table[0],
            lambda: db.close(),
            lambda: braid.in_memory(),
        )

    for _ in range(50):
        in_child(child)
    stop.set()
    holder.commit()
    for thread in threads:
        thread.join()
    assert table[0] == 1
    db.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_may_open_another_database(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        db.open_table("t", key=int, value=int)[1] = 1

    def child() -> None:
        with pytest.raises(braid.ClosedError):
            db.begin()
        with braid.open(path, **SMALL) as own:
            own.open_table("t", key=int, value=int)[2] = 2

    in_child(child)
    with braid.open(path, **SMALL) as db:
        assert dict(db.open_table("t", key=int, value=int)) == {1: 1, 2: 2}
