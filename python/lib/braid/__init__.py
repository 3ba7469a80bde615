"""Braid, an embeddable transactional key-value store.

>>> import braid
>>> db = braid.in_memory()
>>> books = db.table("books", key=str, value=bytes)
>>> with db.begin() as tx:
...     tx.insert(books, "moby-dick", b"Call me Ishmael.")
>>> books["moby-dick"]
b'Call me Ishmael.'
>>> db.close()

The reference is docs/python.md in the repository.
"""

from collections.abc import MutableMapping as _MutableMapping

from braid._braid import (
    MAX_KEY_LEN,
    MAX_TABLE_NAME_LEN,
    MAX_VALUE_LEN,
    Database,
    Entries,
    Snapshot,
    Table,
    Ticket,
    Transaction,
    Type,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    i128,
    in_memory,
    open,
    u8,
    u16,
    u32,
    u64,
    u128,
    verify,
)
from braid.errors import (
    ClosedError,
    ConflictError,
    CorruptError,
    DecodeError,
    Error,
    ForeignTableError,
    IncompatibleError,
    IoError,
    LimitError,
    LockedError,
    NotADatabaseError,
    OptionError,
    OutOfSpaceError,
    PoisonedError,
    ReadOnlyError,
    TableDroppedError,
    TableError,
    TableExistsError,
    TableMissingError,
    TableNameError,
    TableTypeError,
    TransactionEndedError,
    WouldDeadlockError,
)
from braid.reports import Health, LogStats, RecoveryReport, Stats, StoreStats, VerifyReport

_MutableMapping.register(Table)

__all__ = [
    "MAX_KEY_LEN",
    "MAX_TABLE_NAME_LEN",
    "MAX_VALUE_LEN",
    "ClosedError",
    "ConflictError",
    "CorruptError",
    "Database",
    "DecodeError",
    "Entries",
    "Error",
    "ForeignTableError",
    "Health",
    "IncompatibleError",
    "IoError",
    "LimitError",
    "LockedError",
    "LogStats",
    "NotADatabaseError",
    "OptionError",
    "OutOfSpaceError",
    "PoisonedError",
    "ReadOnlyError",
    "RecoveryReport",
    "Snapshot",
    "Stats",
    "StoreStats",
    "Table",
    "TableDroppedError",
    "TableError",
    "TableExistsError",
    "TableMissingError",
    "TableNameError",
    "TableTypeError",
    "Ticket",
    "Transaction",
    "TransactionEndedError",
    "Type",
    "VerifyReport",
    "WouldDeadlockError",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "in_memory",
    "open",
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "verify",
]
