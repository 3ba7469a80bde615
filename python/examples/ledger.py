"""A ledger: concurrent transfers of many tasks, each durable before it is confirmed.

    python ledger.py DIRECTORY
"""

from __future__ import annotations

import asyncio
import random
import sys

import braid

ACCOUNTS = 10
START = 1000


class Overdrawn(Exception):
    pass


class Ledger:
    def __init__(self, db: braid.Database) -> None:
        self.db = db
        self.balances = db.open_table("balances", key=str, value=int)
        self.transfers = db.open_table("transfers", key=braid.u64, value=str)
        if not self.balances:
            self.balances.update({f"account {i}": START for i in range(ACCOUNTS)})

    async def transfer(self, giver: str, taker: str, amount: int) -> int:
        """Returns the transfer's number once it is durable."""

        def move(tx: braid.Transaction) -> tuple[int, braid.Ticket]:
            given = tx.get_for_update(self.balances, giver, 0)
            if given < amount:
                raise Overdrawn(f"{giver} has {given}, not {amount}")
            last = tx.last(self.transfers)
            number = last[0] + 1 if last else 1
            tx.insert(self.transfers, number, f"{amount} from {giver} to {taker}")
            tx.insert(self.balances, giver, given - amount)
            tx.fetch_update(self.balances, taker, lambda taken: (taken or 0) + amount)
            return number, tx.commit_async()

        number, ticket = self.db.transact(move)
        await ticket
        return number


async def main(directory: str) -> None:
    with braid.open(directory) as db:
        ledger = Ledger(db)
        names = list(ledger.balances)

        async def client(seed: int) -> int:
            rng, refused = random.Random(seed), 0
            for _ in range(20):
                giver, taker = rng.sample(names, 2)
                try:
                    await ledger.transfer(giver, taker, rng.randrange(1, 500))
                except Overdrawn:
                    refused += 1
            return refused

        refused = sum(await asyncio.gather(*(client(seed) for seed in range(50))))
        with db.snapshot() as snapshot:
            for name, balance in snapshot.range(ledger.balances):
                print(f"{name}: {balance}")
            assert sum(balance for _, balance in snapshot.range(ledger.balances)) == ACCOUNTS * START
        flushes = db.stats().log.flushes
        print(f"{len(ledger.transfers)} transfers, {refused} refused, {flushes} flushes")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
