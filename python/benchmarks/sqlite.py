"""Compare Braid with the module ``sqlite3`` of the standard library on the same disk.

    python benchmarks/sqlite.py [--directory DIR] [--rounds N] [--seconds S] [--rows N]

Both engines do the same work in each round, one after the other. Rows have an integer key and 100
bytes. ``sqlite3`` has a table ``(k INTEGER PRIMARY KEY, v BLOB)`` with WAL and
``synchronous=FULL``, so that a commit is durable when it returns, as Braid's is by default. Each
thread has a connection in autocommit mode, and the module caches its statements. A read fetches one
row by key.

- "A call for all" compares ``table.update`` with ``executemany``; both get the same generator.
- "In flight" uses tickets, and counts the commits that the tickets reported as durable. Every
  commit of ``sqlite3`` waits.
- Each write changes the value, because SQLite writes and syncs nothing for an unchanged row.
- One thread that waits for each commit alternates between the engines after each commit, because
  the speed of a shared disk changes from second to second. The disk alone takes part in these
  turns: it writes 4 KiB durably to an existing file, past the page cache, which is the minimum for
  a commit of one row. All other measurements run by themselves for a while.

A cell is the median of the rounds, with the minimum and the maximum. Every value that is read is
checked. ``--only TEXT`` measures only the lines whose title contains the text. ``--commits N``
makes N waited commits of one row with each engine, to be counted with
``strace -f -c -e trace=fdatasync,fsync,pwrite64,pwritev2,io_uring_enter``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import mmap
import os
import random
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import braid

FILLER = bytes(range(92))
# Prepared, so that the measurements do not include it.
VALUES = [number.to_bytes(8, "big") + FILLER for number in range(997)]
next_value = itertools.cycle(VALUES).__next__
"""Returns a value that almost always differs from the current one of a row."""


def is_value(value: bytes) -> bool:
    return len(value) == 100 and value.endswith(FILLER)



Worker = Callable[[int], Callable[[], int]]
"""Maps a thread's number to the work that it repeats, which returns its operations."""


class Braid:
    name = "braid"

    def __init__(self, directory: Path, rows: int) -> None:
        self.rows = rows
        self.db = braid.open(directory / "braid")
        self.table = self.db.open_table("t", key=int, value=bytes)
        for start in range(0, rows, 10_000):
            self.table.update((k, next_value()) for k in range(start, min(start + 10_000, rows)))
        self.db.checkpoint()

    def writer(self, number: int) -> Callable[[], int]:
        rng, table, rows = random.Random(number), self.table, self.rows

        def write() -> int:
            table[rng.randrange(rows)] = next_value()
            return 1

        return write

    def reader(self, number: int) -> Callable[[], int]:
        keys, table = keys_of(number, self.rows), self.table

        def read() -> int:
            for key in keys:
                assert is_value(table[key])
            return len(keys)

        return read

    def transaction_reader(self, number: int) -> Callable[[], int]:
        keys, table, db = keys_of(number, self.rows), self.table, self.db

        def read() -> int:
            with db.snapshot() as snapshot:
                for key in keys:
                    value = snapshot.get(table, key)
                    assert value is not None and is_value(value)
            return len(keys)

        return read

    def batch_writer(self, number: int) -> Callable[[], int]:
        rng, table, db, rows = random.Random(number), self.table, self.db, self.rows

        def write() -> int:
            def body(tx: braid.Transaction) -> None:
                for key in keys:
                    tx.insert(table, key, next_value())

            keys = sorted(rng.randrange(rows) for _ in range(100))
            db.transact(body)
            return len(keys)

        return write

    def many_writer(self, number: int) -> Callable[[], int]:
        rng, table, rows = random.Random(number), self.table, self.rows

        def write() -> int:
            keys = sorted(rng.randrange(rows) for _ in range(100))
            table.update((key, next_value()) for key in keys)
            return len(keys)

        return write

    def pipelined_writer(self, number: int) -> Callable[[], int]:
        return self.pipelined(number, 1)

    def pipelined_batch_writer(self, number: int) -> Callable[[], int]:
        return self.pipelined(number, 100)

    def pipelined(self, number: int, batch: int) -> Callable[[], int]:
        rng, table, db, rows = random.Random(number), self.table, self.db, self.rows
        in_flight: list[braid.Ticket] = []

        def write() -> int:
            nonlocal in_flight
            began = []
            for _ in range(100):
                tx = db.begin()
                if batch == 1:
                    tx.insert(table, rng.randrange(rows), next_value())
                else:
                    keys = sorted(rng.randrange(rows) for _ in range(batch))
                    tx.insert_many(table, ((key, next_value()) for key in keys))
                began.append(tx.commit_async())
            # Count commits when they are durable, while the next hundred are in flight.
            for ticket in in_flight:
                ticket.wait()
            done, in_flight = len(in_flight), began
            return done * batch

        return write

    def asyncio_writer(self, number: int) -> Callable[[], int]:
        rng, table, db, rows = random.Random(number), self.table, self.db, self.rows

        async def task() -> None:
            for _ in range(10):
                tx = db.begin()
                tx.insert(table, rng.randrange(rows), next_value())
                await tx.commit_async()

        async def tasks() -> None:
            await asyncio.gather(*(task() for _ in range(100)))

        def write() -> int:
            asyncio.run(tasks())
            return 1000

        return write

    def scanner(self, number: int) -> Callable[[], int]:
        table = self.table

        def scan() -> int:
            count = 0
            for _, value in table.range():
                count += 1
            return count

        return scan

    def close(self) -> None:
        self.db.close()


class Sqlite:
    name = "sqlite3"

    def __init__(self, directory: Path, rows: int) -> None:
        self.rows = rows
        self.path = directory / "sqlite.db"
        self.connections: list[sqlite3.Connection] = []
        db = self.connect()
        db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES (?, ?)", ((k, next_value()) for k in range(rows)))
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def connect(self) -> sqlite3.Connection:
        # The cache has the size of Braid's pool; a writer waits for others without limit.
        db = sqlite3.connect(
            self.path, timeout=600, isolation_level=None, check_same_thread=False
        )
        assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA cache_size=-262144")
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        self.connections.append(db)
        return db

    def writer(self, number: int) -> Callable[[], int]:
        rng, db, rows = random.Random(number), self.connect(), self.rows

        def write() -> int:
            db.execute("REPLACE INTO t VALUES (?, ?)", (rng.randrange(rows), next_value()))
            return 1

        return write

    def reader(self, number: int) -> Callable[[], int]:
        keys, db = keys_of(number, self.rows), self.connect()

        def read() -> int:
            for key in keys:
                (value,) = db.execute("SELECT v FROM t WHERE k = ?", (key,)).fetchone()
                assert is_value(value)
            return len(keys)

        return read

    def transaction_reader(self, number: int) -> Callable[[], int]:
        read_each, db = self.reader(number), self.connections[-1]

        def read() -> int:
            db.execute("BEGIN")
            count = read_each()
            db.execute("COMMIT")
            return count

        return read

    def batch_writer(self, number: int) -> Callable[[], int]:
        rng, db, rows = random.Random(number), self.connect(), self.rows

        def write() -> int:
            keys = sorted(rng.randrange(rows) for _ in range(100))
            db.execute("BEGIN IMMEDIATE")
            for key in keys:
                db.execute("REPLACE INTO t VALUES (?, ?)", (key, next_value()))
            db.execute("COMMIT")
            return len(keys)

        return write

    def many_writer(self, number: int) -> Callable[[], int]:
        rng, db, rows = random.Random(number), self.connect(), self.rows

        def write() -> int:
            keys = sorted(rng.randrange(rows) for _ in range(100))
            db.execute("BEGIN IMMEDIATE")
            db.executemany("REPLACE INTO t VALUES (?, ?)", ((key, next_value()) for key in keys))
            db.execute("COMMIT")
            return len(keys)

        return write

    # sqlite3 has only commits that wait.
    pipelined_writer = writer
    pipelined_batch_writer = many_writer
    asyncio_writer = writer

    def scanner(self, number: int) -> Callable[[], int]:
        db = self.connect()

        def scan() -> int:
            count = 0
            for _, value in db.execute("SELECT k, v FROM t ORDER BY k"):
                count += 1
            return count

        return scan

    def close(self) -> None:
        for db in self.connections:
            db.close()


class Disk:
    """Durable writes to the disk, without an engine."""

    name = "disk"
    BLOCK = 4096
    BLOCKS = 1024

    def __init__(self, directory: Path) -> None:
        path = directory / "disk"
        path.write_bytes(bytes(self.BLOCK * self.BLOCKS))
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT)
        os.fsync(self.file)
        # Direct writes need an aligned buffer.
        self.block = mmap.mmap(-1, self.BLOCK)
        self.block.write(FILLER)

    def writer(self, number: int) -> Callable[[], int]:
        places = itertools.cycle(range(0, self.BLOCK * self.BLOCKS, self.BLOCK))

        def write() -> int:
            os.pwritev(self.file, [self.block], next(places), os.RWF_DSYNC)
            return 1

        return write

    batch_writer = writer
    many_writer = writer

    def close(self) -> None:
        os.close(self.file)


def keys_of(number: int, rows: int) -> list[int]:
    rng = random.Random(number)
    return [rng.randrange(rows) for _ in range(1000)]


def measure(worker: Worker, threads: int, seconds: float) -> float:
    """Returns the operations per second of this many threads together."""
    work = [worker(number) for number in range(threads)]
    done = [0] * threads
    ends = [0.0] * threads
    barrier = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        act = work[number]
        act()
        count = 0
        barrier.wait()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            count += act()
        done[number], ends[number] = count, time.perf_counter()

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    barrier.wait()
    began = time.perf_counter()
    for thread in running:
        thread.join()
    return sum(done) / (max(ends) - began)


def measure_in_turns(workers: list[Worker], seconds: float, times: list[list[float]]) -> list[float]:
    """Returns the operations per second of each worker, which take turns after each commit, so that
    changes of a shared disk affect all alike. Appends the seconds of each commit to ``times``."""
    work = [worker(0) for worker in workers]
    for act in work:
        act()
    done, spent = [0] * len(work), [0.0] * len(work)
    until = time.perf_counter() + seconds * len(work)
    turns = list(range(len(work)))
    while time.perf_counter() < until:
        for each in turns:
            began = time.perf_counter()
            done[each] += work[each]()
            times[each].append(time.perf_counter() - began)
            spent[each] += times[each][-1]
        turns.reverse()
    return [count / took for count, took in zip(done, spent)]


# Work of one thread that waits for each commit; measured in turns.
WAITING = {"writer", "batch_writer", "many_writer"}

WORK: list[tuple[str, str, int]] = [
    ("waited commits of 1 row, 1 thread", "writer", 1),
    ("waited commits of 1 row, 8 threads", "writer", 8),
    ("rows by commits of 100, a call for each row, 1 thread", "batch_writer", 1),
    ("rows by commits of 100, a call for all of them, 1 thread", "many_writer", 1),
    ("commits of 1 row, 1 thread, 200 in flight; sqlite3 waits for each", "pipelined_writer", 1),
    ("commits of 1 row, 100 tasks of asyncio; sqlite3 waits for each", "asyncio_writer", 1),
    (
        "rows by commits of 100, 1 thread, 200 in flight; sqlite3 waits for each",
        "pipelined_batch_writer",
        1,
    ),
    ("reads of 1 row by key, 1 thread", "reader", 1),
    ("reads of 1 row by key, 8 threads", "reader", 8),
    ("the same, 1,000 in one read transaction, 1 thread", "transaction_reader", 1),
    ("rows of a scan of all, 1 thread", "scanner", 1),
]


def figure(samples: list[float]) -> str:
    median = statistics.median(samples)
    return f"{median:,.0f} ({min(samples):,.0f} – {max(samples):,.0f})"


def percentile(times: list[float], percent: int) -> float:
    return sorted(times)[len(times) * percent // 100]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--directory", type=Path, help="directory; default: that for temporary files")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument(
        "--commits", type=int, default=0, help="make this many commits with each engine; measure nothing"
    )
    parser.add_argument("--only", default="", help="measure only the lines whose title contains this")
    options = parser.parse_args()
    work_to_do = [line for line in WORK if options.only in line[0]]
    directory = Path(tempfile.mkdtemp(prefix="braid-bench-", dir=options.directory))
    try:
        engines: list[Braid | Sqlite]
        engines = [Braid(directory, options.rows), Sqlite(directory, options.rows)]
        disk = Disk(directory)
        if options.commits:
            for engine in engines:
                write = engine.writer(1)
                print(engine.name, sum(write() for _ in range(options.commits)), flush=True)
                engine.close()
            return
        samples: dict[tuple[str, str], list[float]] = {}
        times: dict[tuple[str, str], list[float]] = {}
        for turn in range(options.rounds):
            for title, work, threads in work_to_do:
                # The engines alternate in going first.
                order: list[Braid | Sqlite | Disk] = [*(engines if turn % 2 == 0 else engines[::-1])]
                in_turns = threads == 1 and work in WAITING
                if in_turns:
                    order.append(disk)
                workers = [getattr(each, work) for each in order]
                if in_turns:
                    taken: list[list[float]] = [[] for _ in order]
                    rates = measure_in_turns(workers, options.seconds, taken)
                    for each, added in zip(order, taken):
                        times.setdefault((title, each.name), []).extend(added)
                else:
                    rates = [measure(worker, threads, options.seconds) for worker in workers]
                for each, rate in zip(order, rates):
                    samples.setdefault((title, each.name), []).append(rate)
        print(f"SQLite {sqlite3.sqlite_version}, {options.rows:,} rows, {options.rounds} rounds")
        print()
        print("| a second | braid | sqlite3 | ratio |")
        print("|---|---|---|---|")
        for title, _, _ in work_to_do:
            ours, theirs = samples[title, "braid"], samples[title, "sqlite3"]
            ratio = statistics.median(ours) / statistics.median(theirs)
            print(f"| {title} | {figure(ours)} | {figure(theirs)} | {ratio:.1f} |")
        if times:
            print()
            print("| microseconds a commit | | the disk | braid | sqlite3 | ratio |")
            print("|---|---|---|---|---|---|")
        for title in [title for title, _, _ in work_to_do if (title, "braid") in times]:
            for percent, name in (10, "of ten the fastest"), (50, "median"):
                names = ("disk", "braid", "sqlite3")
                all_three = [percentile(times[title, engine], percent) for engine in names]
                cells = " | ".join(f"{taken * 1e6:,.0f}" for taken in all_three)
                print(f"| {title} | {name} | {cells} | {all_three[2] / all_three[1]:.1f} |")
        for engine in engines:
            engine.close()
        disk.close()
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
