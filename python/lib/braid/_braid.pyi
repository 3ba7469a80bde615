"""The compiled part of the package."""

from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Literal, Protocol, TypedDict, TypeVar, final, overload

from _typeshed import SupportsKeysAndGetItem
from typing_extensions import Unpack

from braid._views import TableItems, TableKeys, TableValues
from braid.reports import (
    BackupInfo,
    BackupReport,
    CompactReport,
    Estimate,
    Health,
    MoveReport,
    RecoveryReport,
    RestoreReport,
    SalvageReport,
    Stats,
    UpgradeReport,
    VerifyReport,
)

_K = TypeVar("_K")
_V = TypeVar("_V")
_T = TypeVar("_T")
_D = TypeVar("_D")
_T_co = TypeVar("_T_co", covariant=True)

_Path = str | PathLike[str]
_Device = Literal["auto", "uring", "file", "memory", "pmem", "pmem-file", "pmem-emulated"]
_Entries = SupportsKeysAndGetItem[_K, _V] | Iterable[tuple[_K, _V]]
_Isolation = Literal["serializable", "snapshot"]
_Durability = Literal["immediate", "none"] | timedelta

class _Options(TypedDict, total=False):
    protocol: Literal["serial", "aether", "epoch", "gsn", "glsn", "gwsn-strict", "gwsn"]
    strands: int
    lanes: int
    epoch: timedelta
    device: _Device
    log_directory: _Path
    log_device: _Device
    pool_bytes: int
    segment_bytes: int
    checkpoint_log_bytes: int
    max_log_bytes: int
    preallocated_log_bytes: int
    transaction_bytes_max: int
    flushes_in_flight: int
    group_size: int
    pmem_commit: Literal["eager", "lazy", "checksum"]
    pmem_lines: bool
    pmem_in_place: bool
    create_if_missing: bool
    discard: bool
    numa: bool
    remote_access: Literal["direct", "agent", "auto"]
    file_mode: int
    lock_timeout: timedelta
    max_version_bytes: int
    read_only: bool
    archive: _Path
    archive_interval: timedelta
    feed_log_bytes: int
    durability: _Durability
    stats_file: bool
    on_health_change: Callable[[Health], object]

class _Writer(Protocol):
    def write(self, data: bytes, /) -> int | None: ...

class _Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...

__all__ = [
    "MAX_KEY_LEN",
    "MAX_TABLE_NAME_LEN",
    "MAX_VALUE_LEN",
    "BulkLoader",
    "Change",
    "ChangeSet",
    "Changes",
    "Database",
    "Entries",
    "Feed",
    "Position",
    "Savepoint",
    "Snapshot",
    "Table",
    "Ticket",
    "Transaction",
    "Type",
    "__version__",
    "backup_info",
    "dump",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "in_memory",
    "open",
    "restore",
    "salvage",
    "tuple_of",
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "upgrade",
    "verify",
]

__version__: Final[str]
MAX_KEY_LEN: Final[int]
MAX_VALUE_LEN: Final[int]
MAX_TABLE_NAME_LEN: Final[int]

@final
class Type(Generic[_T]):
    @property
    def name(self) -> str: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __class_getitem__(cls, key: Any) -> Any: ...

def tuple_of(*parts: type[Any] | Type[Any]) -> Type[tuple[Any, ...]]: ...

u8: Final[Type[int]]
u16: Final[Type[int]]
u32: Final[Type[int]]
u64: Final[Type[int]]
u128: Final[Type[int]]
i8: Final[Type[int]]
i16: Final[Type[int]]
i32: Final[Type[int]]
i64: Final[Type[int]]
i128: Final[Type[int]]
f32: Final[Type[float]]
f64: Final[Type[float]]

def open(path: _Path, **options: Unpack[_Options]) -> Database: ...
def in_memory(**options: Unpack[_Options]) -> Database: ...
def verify(
    path: _Path,
    *,
    tablespaces: Mapping[str, _Path] | None = None,
    tablespace_logs: Mapping[str, _Path] | None = None,
) -> VerifyReport: ...
def salvage(
    path: _Path,
    into: _Path,
    *,
    tablespaces: Mapping[str, _Path] | None = None,
    tablespace_logs: Mapping[str, _Path] | None = None,
) -> SalvageReport: ...
def upgrade(path: _Path) -> UpgradeReport: ...
def dump(
    path: _Path,
    *,
    tablespaces: Mapping[str, _Path] | None = None,
    tablespace_logs: Mapping[str, _Path] | None = None,
) -> str: ...
def backup_info(path: _Path) -> BackupInfo: ...
def restore(
    backups: Iterable[_Path | _Reader],
    path: _Path,
    *,
    archive: _Path | None = None,
    until: int | datetime | None = None,
    device: Literal["auto", "uring", "file"] | None = None,
    pool_bytes: int | None = None,
    file_mode: int | None = None,
    tablespaces: Mapping[str, _Path] | None = None,
    tablespace_logs: Mapping[str, _Path] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RestoreReport: ...

@final
class Database:
    @overload
    def open_table(
        self,
        name: str,
        *,
        key: None = None,
        value: None = None,
        create: bool = True,
        compression: Literal["lz4"] | None = None,
        time_to_live: timedelta | None = None,
        tablespace: str | None = None,
    ) -> Table[bytes, bytes]: ...
    @overload
    def open_table(
        self,
        name: str,
        *,
        key: type[_K] | Type[_K],
        value: None = None,
        create: bool = True,
        compression: Literal["lz4"] | None = None,
        time_to_live: timedelta | None = None,
        tablespace: str | None = None,
    ) -> Table[_K, bytes]: ...
    @overload
    def open_table(
        self,
        name: str,
        *,
        key: None = None,
        value: type[_V] | Type[_V],
        create: bool = True,
        compression: Literal["lz4"] | None = None,
        time_to_live: timedelta | None = None,
        tablespace: str | None = None,
    ) -> Table[bytes, _V]: ...
    @overload
    def open_table(
        self,
        name: str,
        *,
        key: type[_K] | Type[_K],
        value: type[_V] | Type[_V],
        create: bool = True,
        compression: Literal["lz4"] | None = None,
        time_to_live: timedelta | None = None,
        tablespace: str | None = None,
    ) -> Table[_K, _V]: ...
    @overload
    def bulk_load(
        self,
        name: str,
        *,
        key: None = None,
        value: None = None,
        compression: Literal["lz4"] | None = None,
        time_to_live: timedelta | None = None,
        tablespace: str | None = None,
    ) -> BulkLoader[bytes, bytes]: ...
    @overload
    def bulk_load(
        self,
        name: str,
        *,
        key: type[_K] | Type[_K],
        value: None = None,
        compression: Literal["lz4"] | None = None,
        time_to_live: timedelta | None = None,
        tablespace: str | None = None,
    ) -> BulkLoader[_K, bytes]: ...
    @overload
    def bulk_load(
        self,
        name: str,
        *,
        key: None = None,
        value: type[_V] | Type[_V],
        compression: Literal["lz4"] | None = None,
        time_to_live: timedelta | None = None,
        tablespace: str | None = None,
    ) -> BulkLoader[bytes, _V]: ...
    @overload
    def bulk_load(
        self,
        name: str,
        *,
        key: type[_K] | Type[_K],
        value: type[_V] | Type[_V],
        compression: Literal["lz4"] | None = None,
        time_to_live: timedelta | None = None,
        tablespace: str | None = None,
    ) -> BulkLoader[_K, _V]: ...
    def existing_table(self, name: str) -> Table[Any, Any] | None: ...
    def table_names(self) -> list[str]: ...
    def create_tablespace(
        self,
        name: str,
        directory: _Path,
        *,
        pool_bytes: int | None = None,
        own_log: bool = False,
        memory_node: int | None = None,
        log_directory: _Path | None = None,
    ) -> None: ...
    def drop_tablespace(self, name: str) -> None: ...
    def move_table(self, name: str, tablespace: str | None) -> MoveReport: ...
    def tablespace_names(self) -> list[str]: ...
    def drop_table(self, name: str) -> bool: ...
    def rename_table(self, name: str, to: str) -> None: ...
    def begin(
        self,
        *,
        isolation: _Isolation | None = None,
        durability: _Durability | None = None,
        lock_timeout: timedelta | None = None,
    ) -> Transaction: ...
    def transact(
        self,
        body: Callable[[Transaction], _T],
        *,
        isolation: _Isolation | None = None,
        durability: _Durability | None = None,
        lock_timeout: timedelta | None = None,
    ) -> _T: ...
    def refresh(self) -> bool: ...
    def snapshot(self) -> Snapshot: ...
    def create_snapshot(self, name: str) -> Snapshot: ...
    def open_snapshot(self, name: str) -> Snapshot: ...
    def snapshot_names(self) -> list[str]: ...
    def drop_snapshot(self, name: str) -> bool: ...
    def changes(self, position: Position | None = None) -> Changes: ...
    def position(self, seqno: int | None = None) -> Position: ...
    def oldest_position(self) -> Position: ...
    def feed(self, name: str) -> Feed: ...
    def feeds(self) -> dict[str, Position]: ...
    def drop_feed(self, name: str) -> bool: ...
    def backup(
        self,
        path: _Path | _Writer,
        *,
        parent: _Path | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> BackupReport: ...
    def archive_now(self) -> int | None: ...
    def remove_expired(self) -> int: ...
    def compact(self) -> CompactReport: ...
    def sync(self) -> None: ...
    def checkpoint(self) -> None: ...
    def stats(self) -> Stats: ...
    def health(self) -> Health: ...
    def recovery(self) -> RecoveryReport: ...
    @property
    def durable_seqno(self) -> int: ...
    @property
    def path(self) -> Path | None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Database: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Table(MutableMapping[_K, _V]):
    def __getitem__(self, key: _K, /) -> _V: ...
    def __setitem__(self, key: _K, value: _V, /) -> None: ...
    def __delitem__(self, key: _K, /) -> None: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Iterator[_K]: ...
    def __reversed__(self) -> Iterator[_K]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    @overload
    def get(self, key: _K, default: None = None) -> _V | None: ...
    @overload
    def get(self, key: _K, default: _D) -> _V | _D: ...
    @overload
    def pop(self, key: _K) -> _V: ...
    @overload
    def pop(self, key: _K, default: _D, /) -> _V | _D: ...
    def popitem(self) -> tuple[_K, _V]: ...
    def setdefault(self, key: _K, default: _V) -> _V: ...
    @overload
    def update(self, other: SupportsKeysAndGetItem[_K, _V], /) -> None: ...
    @overload
    def update(self, other: Iterable[tuple[_K, _V]], /) -> None: ...
    @overload
    def update(
        self: Table[str, _V],
        other: SupportsKeysAndGetItem[str, _V] | Iterable[tuple[str, _V]] | None = None,
        /,
        **entries: _V,
    ) -> None: ...
    def clear(self) -> None: ...
    def keys(self) -> TableKeys[_K, _V]: ...
    def values(self) -> TableValues[_K, _V]: ...
    def items(self) -> TableItems[_K, _V]: ...
    def first(self) -> tuple[_K, _V] | None: ...
    def last(self) -> tuple[_K, _V] | None: ...
    def range(
        self,
        start: _K | None = None,
        stop: _K | None = None,
        *,
        include_stop: bool = False,
        reverse: bool = False,
    ) -> Entries[tuple[_K, _V]]: ...
    def prefix(
        self, prefix: _K | tuple[Any, ...], *, reverse: bool = False
    ) -> Entries[tuple[_K, _V]]: ...
    @overload
    def get_many(self, keys: Iterable[_K], default: None = None) -> list[_V | None]: ...
    @overload
    def get_many(self, keys: Iterable[_K], default: _D) -> list[_V | _D]: ...
    def estimate(
        self, start: _K | None = None, stop: _K | None = None, *, include_stop: bool = False
    ) -> Estimate: ...
    @property
    def name(self) -> str: ...
    @property
    def key_type(self) -> type[_K] | Type[_K]: ...
    @property
    def value_type(self) -> type[_V] | Type[_V]: ...
    @property
    def compression(self) -> str | None: ...
    @property
    def time_to_live(self) -> timedelta | None: ...
    def __class_getitem__(cls, key: Any) -> Any: ...

@final
class Entries(Iterator[_T_co]):
    def __iter__(self) -> Entries[_T_co]: ...
    def __next__(self) -> _T_co: ...
    def __class_getitem__(cls, key: Any) -> Any: ...

@final
class Snapshot:
    @overload
    def get(self, table: Table[_K, _V], key: _K, default: None = None) -> _V | None: ...
    @overload
    def get(self, table: Table[_K, _V], key: _K, default: _D) -> _V | _D: ...
    def contains_key(self, table: Table[_K, Any], key: _K) -> bool: ...
    @overload
    def get_many(
        self, table: Table[_K, _V], keys: Iterable[_K], default: None = None
    ) -> list[_V | None]: ...
    @overload
    def get_many(
        self, table: Table[_K, _V], keys: Iterable[_K], default: _D
    ) -> list[_V | _D]: ...
    def prefetch(self, table: Table[_K, Any], keys: Iterable[_K]) -> None: ...
    def first(self, table: Table[_K, _V]) -> tuple[_K, _V] | None: ...
    def last(self, table: Table[_K, _V]) -> tuple[_K, _V] | None: ...
    def range(
        self,
        table: Table[_K, _V],
        start: _K | None = None,
        stop: _K | None = None,
        *,
        include_stop: bool = False,
        reverse: bool = False,
    ) -> Entries[tuple[_K, _V]]: ...
    def prefix(
        self, table: Table[_K, _V], prefix: _K | tuple[Any, ...], *, reverse: bool = False
    ) -> Entries[tuple[_K, _V]]: ...
    @property
    def seqno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Snapshot: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Transaction:
    @overload
    def get(self, table: Table[_K, _V], key: _K, default: None = None) -> _V | None: ...
    @overload
    def get(self, table: Table[_K, _V], key: _K, default: _D) -> _V | _D: ...
    def contains_key(self, table: Table[_K, Any], key: _K) -> bool: ...
    @overload
    def get_many(
        self, table: Table[_K, _V], keys: Iterable[_K], default: None = None
    ) -> list[_V | None]: ...
    @overload
    def get_many(
        self, table: Table[_K, _V], keys: Iterable[_K], default: _D
    ) -> list[_V | _D]: ...
    def prefetch(self, table: Table[_K, Any], keys: Iterable[_K]) -> None: ...
    def first(self, table: Table[_K, _V]) -> tuple[_K, _V] | None: ...
    def last(self, table: Table[_K, _V]) -> tuple[_K, _V] | None: ...
    def range(
        self,
        table: Table[_K, _V],
        start: _K | None = None,
        stop: _K | None = None,
        *,
        include_stop: bool = False,
        reverse: bool = False,
    ) -> Entries[tuple[_K, _V]]: ...
    def prefix(
        self, table: Table[_K, _V], prefix: _K | tuple[Any, ...], *, reverse: bool = False
    ) -> Entries[tuple[_K, _V]]: ...
    @overload
    def get_for_update(self, table: Table[_K, _V], key: _K, default: None = None) -> _V | None: ...
    @overload
    def get_for_update(self, table: Table[_K, _V], key: _K, default: _D) -> _V | _D: ...
    def insert(self, table: Table[_K, _V], key: _K, value: _V) -> None: ...
    def insert_many(self, table: Table[_K, _V], entries: _Entries[_K, _V]) -> None: ...
    def replace(self, table: Table[_K, _V], key: _K, value: _V) -> _V | None: ...
    def insert_if_absent(self, table: Table[_K, _V], key: _K, value: _V) -> bool: ...
    def remove(self, table: Table[_K, Any], key: _K) -> bool: ...
    def remove_range(
        self,
        table: Table[_K, Any],
        start: _K | None = None,
        stop: _K | None = None,
        *,
        include_stop: bool = False,
    ) -> int: ...
    @overload
    def take(self, table: Table[_K, _V], key: _K, default: None = None) -> _V | None: ...
    @overload
    def take(self, table: Table[_K, _V], key: _K, default: _D) -> _V | _D: ...
    def compare_and_set(
        self, table: Table[_K, _V], key: _K, expected: _V | None, new: _V | None
    ) -> bool: ...
    def fetch_update(
        self, table: Table[_K, _V], key: _K, update: Callable[[_V | None], _V | None]
    ) -> _V | None: ...
    def savepoint(self) -> Savepoint: ...
    def commit(self) -> int: ...
    def commit_async(self) -> Ticket: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Transaction: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _exception: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class Ticket(Awaitable[int]):
    @property
    def seqno(self) -> int: ...
    def poll(self) -> bool: ...
    def wait(self) -> int: ...
    def __await__(self) -> Generator[Any, Any, int]: ...

@final
class Savepoint:
    def rollback(self) -> None: ...
    def __enter__(self) -> Savepoint: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _exception: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class BulkLoader(Generic[_K, _V]):
    def insert(self, key: _K, value: _V) -> None: ...
    def extend(self, entries: _Entries[_K, _V]) -> None: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def finish(self) -> Table[_K, _V]: ...
    def abort(self) -> None: ...
    def __enter__(self) -> BulkLoader[_K, _V]: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _exception: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    def __class_getitem__(cls, key: Any) -> Any: ...

@final
class Position:
    def __new__(cls, text: str) -> Position: ...
    @classmethod
    def from_bytes(cls, bytes: bytes) -> Position: ...
    def to_bytes(self) -> bytes: ...
    @property
    def seqno(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Change:
    @property
    def table(self) -> str | None: ...
    @property
    def table_id(self) -> int: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...

@final
class ChangeSet:
    @property
    def seqno(self) -> int: ...
    @property
    def position(self) -> Position: ...
    @property
    def changes(self) -> list[Change]: ...
    @property
    def loaded(self) -> list[str]: ...

@final
class Changes(Iterator[ChangeSet]):
    def __iter__(self) -> Changes: ...
    def __next__(self) -> ChangeSet: ...
    def next_within(self, time: timedelta) -> ChangeSet | None: ...
    @property
    def position(self) -> Position: ...
    def close(self) -> None: ...
    def __enter__(self) -> Changes: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Feed:
    @property
    def name(self) -> str: ...
    def position(self) -> Position: ...
    def changes(self) -> Changes: ...
    def acknowledge(self, position: Position) -> None: ...
