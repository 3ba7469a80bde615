"""Awaiting tickets."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import SMALL

import braid


def put(db: braid.Database, table: braid.Table[int, int], key: int) -> braid.Ticket:
    tx = db.begin()
    tx.insert(table, key, key)
    return tx.commit_async()


def test_awaiting(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        table = db.open_table("t", key=int, value=int)

        async def main() -> None:
            ticket = put(db, table, 1)
            assert await ticket == ticket.seqno
            assert ticket.poll()
            assert await ticket == ticket.seqno, "a ticket can be awaited again"
            tickets = [put(db, table, key) for key in range(500)]
            numbers = await asyncio.gather(*tickets)
            assert numbers == [ticket.seqno for ticket in tickets]
            assert db.durable_seqno >= max(numbers)
            await asyncio.wait_for(put(db, table, 5), timeout=600)

        asyncio.run(main())
        assert len(table) == 500


def test_many_tasks_and_other_work_of_the_loop(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        table = db.open_table("t", key=int, value=int)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def writer(number: int) -> None:
            for i in range(20):
                await put(db, table, number * 20 + i)

        async def main() -> None:
            counting = asyncio.create_task(count())
            await asyncio.gather(*(writer(number) for number in range(50)))
            counting.cancel()

        asyncio.run(main())
        assert len(table) == 1000
        assert turns > 20


def test_loops_on_several_threads(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        table = db.open_table("t", key=int, value=int)
        done: list[int] = []

        def thread(number: int) -> None:
            async def main() -> None:
                for i in range(20):
                    await put(db, table, number * 20 + i)
                done.append(number)

            asyncio.run(main())

        threads = [threading.Thread(target=thread, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(done) == [0, 1, 2, 3]


def test_a_cancelled_wait(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        table = db.open_table("t", key=int, value=int)

        async def wait(ticket: braid.Ticket) -> int:
            return await ticket

        async def main() -> None:
            for key in range(50):
                ticket = put(db, table, key)
                task = asyncio.create_task(wait(ticket))
                await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    pass
                assert await ticket == ticket.seqno

        asyncio.run(main())
        assert len(table) == 50


def test_a_loop_that_is_closed_before_the_flush(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        table = db.open_table("t", key=int, value=int)
        for key in range(50):
            loop = asyncio.new_event_loop()
            ticket = put(db, table, key)

            async def begin() -> None:
                ticket.__await__()  # registers, and nobody waits

            loop.run_until_complete(begin())
            loop.close()
            assert ticket.wait() == ticket.seqno
        gc.collect()

        async def main() -> None:
            await put(db, table, 100)

        asyncio.run(main())
        assert len(table) == 51


def test_awaiting_after_the_database_was_closed(path: Path) -> None:
    async def main() -> None:
        db = braid.open(path, **SMALL)
        table = db.open_table("t", key=int, value=int)
        tickets = [put(db, table, key) for key in range(50)]
        waiting = [asyncio.ensure_future(ticket) for ticket in tickets]
        await asyncio.sleep(0)
        db.close()
        assert await asyncio.gather(*waiting) == [ticket.seqno for ticket in tickets]
        assert await tickets[0] == tickets[0].seqno

    asyncio.run(main())


def test_there_must_be_a_running_loop(db: braid.Database) -> None:
    ticket = put(db, db.open_table("t", key=int, value=int), 1)
    with pytest.raises(RuntimeError, match="no running event loop"):
        ticket.__await__()


def test_a_second_writer_of_one_loop_is_an_error(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=int)

    async def holds(locked: asyncio.Event, end: asyncio.Event) -> None:
        with db.begin() as tx:
            tx.insert(table, 1, 1)
            locked.set()
            await end.wait()

    async def main() -> None:
        locked, end = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(holds(locked, end))
        await locked.wait()
        with pytest.raises(braid.WouldDeadlockError):
            table[1] = 2
        end.set()
        await task
        table[1] = 3

    asyncio.run(main())
    assert dict(table) == {1: 3}


EXIT = """
import asyncio, sys, threading, time
import braid

db = braid.open(sys.argv[1], pool_bytes=4 << 20, segment_bytes=1 << 20)
table = db.open_table("t", key=int, value=int)

def commits():
    for i in range(10**9):
        table[i] = i

async def main():
    tx = db.begin()
    tx.insert(table, -1, -1)
    await tx.commit_async()
    for i in range(100):
        tx = db.begin()
        tx.insert(table, -i, -i)
        asyncio.ensure_future(tx.commit_async())
    for _ in range(3):
        threading.Thread(target=commits, daemon=True).start()

asyncio.run(main())
while len(table) < 20:
    pass
print("done")
"""


def test_the_interpreter_ends_in_the_midst_of_it_all(path: Path) -> None:
    """The process exits with committing threads, abandoned tickets, and open objects."""
    for _ in range(5):
        ended = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", EXIT, path],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
        assert "panic" not in ended.stderr and "Fatal" not in ended.stderr
    with braid.open(path, **SMALL) as db:
        assert len(db.open_table("t", key=int, value=int)) >= 20
