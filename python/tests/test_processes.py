"""Children that are killed, and children made by fork."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import SMALL

import braid

CHILD = """
import sys, threading
import braid

db = braid.open(sys.argv[1], pool_bytes=4 << 20, segment_bytes=1 << 20)
table = db.table("t", key=int, value=braid.u64)
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


def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
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
            table = db.table("t", key=int, value=braid.u64, create=False)
            for number, i in acknowledged.items():
                # One more may have been committed, and not yet been told of.
                assert table[number] in (i, i + 1)
            for number in range(4):
                assert table.get(number) == table.get(number + 100), "both or none"


def in_child(work: Callable[[], None]) -> None:
    """Runs ``work`` in a child made by fork; fails if that fails."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(60)  # kills it if it hangs
        try:
            work()
            code = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_made_by_fork_leaves_the_database_alone(path: Path) -> None:
    db = braid.open(path, **SMALL)
    table = db.table("t", key=int, value=int)
    table[1] = 1
    open_tx, snapshot, iterator = db.begin(), db.snapshot(), table.range()
    open_tx.insert(table, 2, 2)
    other_tx = db.begin()

    def child() -> None:
        nonlocal db, table, open_tx, snapshot, iterator, other_tx
        for use in (
            lambda: table[1],
            lambda: table.__setitem__(1, 2),
            lambda: open_tx.get(table, 1),
            lambda: open_tx.commit(),
            lambda: other_tx.abort(),
            lambda: snapshot.get(table, 1),
            lambda: next(iterator),
            lambda: db.begin(),
            lambda: db.close(),
            lambda: db.stats(),
            lambda: db.checkpoint(),
        ):
            with pytest.raises(braid.ClosedError, match="parent process"):
                use()
        with pytest.raises(braid.LockedError):
            braid.open(path, **SMALL)
        # Nothing of the parent's is written when these go.
        del db, table, open_tx, snapshot, iterator, other_tx

    before = (path / "data.braid").read_bytes()
    in_child(child)
    assert (path / "data.braid").read_bytes() == before
    open_tx.commit()
    assert list(iterator) == [(1, 1)]
    assert dict(table) == {1: 1, 2: 2}
    db.close()
    assert braid.verify(path).findings == []
