"""Exceptions of the package. All errors of the engine derive from :class:`Error`."""


class Error(Exception):
    """Base class of all errors of the engine."""


class ConflictError(Error):
    """The transaction lost against a concurrent one and left no trace; run it again.

    ``Database.transact`` does.
    """

    kind: str = "other"
    """``"read"``: another transaction overwrote a key that this one read; ``"range"``: another
    transaction changed a range that this one scanned; ``"deadlock"``: two transactions waited for
    each other; ``"write"``: under snapshot isolation, a key changed after the snapshot."""


class CorruptError(Error):
    """Bytes on disk differ from what was written."""

    location: str = ""
    """File and offset, or page."""


class OutOfSpaceError(Error):
    """The medium, or the configured limit, is full; nothing was written and nothing is lost."""


class PoisonedError(Error):
    """An earlier write or sync failed: the database is read-only until it is opened again."""


class ClosedError(Error):
    """The database, the snapshot, the load or the reader of changes was closed."""


class ForkError(ClosedError):
    """This child, made by ``fork``, cannot use its parent's objects or open a database."""


class TransactionEndedError(Error):
    """The transaction was committed or aborted before."""


class WouldDeadlockError(Error, RuntimeError):
    """A second writer could wait forever for an open transaction of the same thread."""


class LockTimeoutError(Error, TimeoutError):
    """Another transaction held a lock for as long as this one was willing to wait.

    The transaction stays open: repeat the operation, or abort it and run it again.
    """


class IncompatibleError(Error):
    """The database was written by a version, or with options, that is not supported."""


class LockedError(Error):
    """Another process, or another handle of this process, has the database open."""


class LogDirectoryError(Error):
    """The directory of the log is missing, belongs to another database, or cannot be used."""


class NotADatabaseError(Error):
    """There is no database in the directory."""


class ReadOnlyError(Error):
    """The file system does not allow writes."""


class OpenedReadOnlyError(Error):
    """The database was opened with ``read_only=True``."""


class SavepointError(Error):
    """The transaction rolled back to a point before the savepoint."""


class OutOfOrderError(Error, ValueError):
    """A key of a bulk load is not greater than the previous one."""


class SnapshotExistsError(Error):
    """There is already a snapshot of this name."""


class SnapshotNotFoundError(Error, LookupError):
    """No snapshot of this name was created since the database was opened."""


class SnapshotTooOldError(Error):
    """The snapshot was ended, because old versions took more than ``max_version_bytes``.

    Begin a new snapshot, or raise the option.
    """


class PositionLostError(Error):
    """The changes after the position are gone: read the tables from scratch."""


class ForeignPositionError(Error, ValueError):
    """The position belongs to another database."""


class FeedNotFoundError(Error, LookupError):
    """There is no feed of this name."""


class BackupError(Error):
    """A backup or an archive cannot be made or used; the message says what to do."""


class LimitError(Error, ValueError):
    """A key, a value, or the writes of a transaction exceed the limit."""


class OptionError(Error, ValueError):
    """An option is out of range."""


class DecodeError(Error, ValueError):
    """Stored bytes are not a valid key or value of the table's types."""


class TableError(Error):
    """Base class of errors about tables."""


class TableNotFoundError(TableError, LookupError):
    """There is no table of this name."""


class TablespaceError(Error):
    """A tablespace is missing, belongs to another database or state, exists, or does not exist."""


class TableExistsError(TableError):
    """There is already a table of this name."""


class TableDroppedError(TableError):
    """The table was dropped after this handle was opened."""


class TableNameError(TableError, ValueError):
    """The name is empty or too long."""


class TableTypeError(TableError, TypeError):
    """The table has other types than the requested ones."""


class TableOptionsError(TableError, ValueError):
    """The table was created with options other than the requested ones."""


class ForeignTableError(TableError, ValueError):
    """The table belongs to another database."""


class IoError(Error, OSError):
    """The operating system refused an operation; ``errno`` is the reason, if known."""
