"""What can go wrong. Everything that the engine fails with is an :class:`Error`."""


class Error(Exception):
    """The base of all errors of the engine."""


class ConflictError(Error):
    """The transaction lost against a concurrent one and left no trace; run it again.

    ``Database.transact`` does.
    """

    kind: str = "other"
    """``"read"``: a key that it read was overwritten; ``"range"``: a range that it scanned was changed;
    ``"deadlock"``: it and another waited for each other; ``"write"``: under snapshot isolation a key
    changed after the snapshot."""


class CorruptError(Error):
    """Bytes on disk are not what was written."""

    location: str = ""
    """File and offset, or page."""


class OutOfSpaceError(Error):
    """The medium, or the configured limit, is full; nothing was written and nothing is lost."""


class PoisonedError(Error):
    """An earlier write or sync failed: the database is read-only until it is opened again."""


class ClosedError(Error):
    """The database, the snapshot, the load or the reader of changes was closed."""


class ForkError(ClosedError):
    """This process was made by ``fork``, and what is used belongs to the parent, or may not be used in a child."""


class TransactionEndedError(Error):
    """The transaction was committed or aborted before."""


class WouldDeadlockError(Error, RuntimeError):
    """This thread has an open transaction with locks, for which a second writer could wait for ever."""


class IncompatibleError(Error):
    """The database was written by a version, or with options, that this one can't serve."""


class LockedError(Error):
    """Another process, or another handle of this one, has the database open."""


class NotADatabaseError(Error):
    """There is no database in the directory."""


class ReadOnlyError(Error):
    """The file system does not allow writes."""


class OpenedReadOnlyError(Error):
    """The database was opened with ``read_only=True``."""


class SavepointError(Error):
    """The transaction returned to a point before the savepoint."""


class OutOfOrderError(Error, ValueError):
    """A key of a bulk load does not come behind the one before."""


class SnapshotExistsError(Error):
    """There is already a snapshot of this name."""


class SnapshotMissingError(Error, LookupError):
    """There is no snapshot of this name since the database was opened."""


class PositionLostError(Error):
    """The changes behind the position are not kept any more; read the tables anew."""


class ForeignPositionError(Error, ValueError):
    """The position is none of this database."""


class FeedMissingError(Error, LookupError):
    """There is no feed of this name."""


class BackupError(Error):
    """A backup or an archive is not what is needed; the message says what to do."""


class LimitError(Error, ValueError):
    """A key, a value or a transaction's writes are over their limit."""


class OptionError(Error, ValueError):
    """An option is out of its range."""


class DecodeError(Error, ValueError):
    """Stored bytes are no valid key or value of the table's types."""


class TableError(Error):
    """The base of what can be wrong with a table."""


class TableMissingError(TableError, LookupError):
    """There is no table of this name."""


class TableExistsError(TableError):
    """There is already a table of this name."""


class TableDroppedError(TableError):
    """The table was dropped while this handle was held."""


class TableNameError(TableError, ValueError):
    """The name is empty or too long."""


class TableTypeError(TableError, TypeError):
    """The table holds other types than those asked for."""


class TableOptionsError(TableError, ValueError):
    """The table was created with other options than those asked for."""


class ForeignTableError(TableError, ValueError):
    """The table belongs to another database."""


class IoError(Error, OSError):
    """The operating system refused an operation; ``errno`` says why, if it is known."""
