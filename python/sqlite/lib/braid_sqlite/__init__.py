"""SQLite with its write-ahead log in persistent memory, for ``sqlite3`` and ``apsw``.

>>> import braid_sqlite
>>> db = braid_sqlite.connect("app.db", log="/mnt/pmem")  # doctest: +SKIP

:func:`load` registers the VFS ``braid`` for programs that open their databases themselves, with a URI
such as ``file:app.db?vfs=braid&braid_log=/mnt/pmem``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from urllib.parse import quote, urlencode

__all__ = ["BraidSqliteError", "ExtensionsUnavailable", "connect", "library_path", "load", "wait"]

# In the order of the library's structure.
_FUNCTIONS = (
    "sqlite3_free",
    "sqlite3_libversion_number",
    "sqlite3_vfs_find",
    "sqlite3_vfs_register",
    "sqlite3_log",
    "sqlite3_uri_parameter",
    "sqlite3_malloc64",
    "sqlite3_filename_database",
    "sqlite3_auto_extension",
    "sqlite3_create_function_v2",
    "sqlite3_context_db_handle",
    "sqlite3_value_text",
    "sqlite3_result_text",
    "sqlite3_result_error",
    "sqlite3_result_error_code",
    "sqlite3_file_control",
    "sqlite3_prepare_v2",
    "sqlite3_step",
    "sqlite3_column_text",
    "sqlite3_finalize",
)

_lock = threading.Lock()
# Modules with a SQLite of their own that has the VFS.
_loaded: set[str] = set()


class BraidSqliteError(Exception):
    """The VFS cannot be registered."""


class ExtensionsUnavailable(BraidSqliteError):
    """The module's SQLite loads no extensions, and its functions cannot be found otherwise."""


def library_path() -> str:
    """Path of the extension, for ``.load`` and ``load_extension``."""
    name = "libbraid_sqlite.dylib" if sys.platform == "darwin" else "libbraid_sqlite.so"
    return str(Path(__file__).with_name(name))


def load(connection: Any) -> None:
    """Register the VFS ``braid`` with the SQLite of a connection, for the life of the process.

    The connection is one of ``sqlite3``, ``pysqlite3`` or ``apsw``; any database will do.

    Raises :class:`ExtensionsUnavailable` if this SQLite loads no extensions, and
    :class:`BraidSqliteError` if the extension refuses it.
    """
    module = type(connection).__module__.partition(".")[0]
    with _lock:
        if module in _loaded:
            return
        if not _loaded:
            _load_path(connection, module, library_path())
        else:
            # A loaded library serves one SQLite, and this process has several.
            with tempfile.TemporaryDirectory() as directory:
                copy = shutil.copy(library_path(), directory)
                _load_path(connection, module, copy)
        _loaded.add(module)


def _load_path(connection: Any, module: str, path: str) -> None:
    enable = getattr(connection, "enable_load_extension", None)
    if enable is None:
        _register(connection, module, path)
        return
    # As apsw and sqlite3 do: the exception has SQLite's reason.
    try:
        enable(True)
        try:
            connection.load_extension(path)
        finally:
            enable(False)
    except Exception as error:
        raise BraidSqliteError(f"cannot load {path} into the SQLite of {module}: {error}") from error


def _register(connection: Any, module: str, path: str) -> None:
    """Registers the VFS without SQLite's loader, with the functions of the library that the module
    is linked with."""
    advice = (
        f"cannot load the extension: {module}.Connection has no enable_load_extension, and the "
        "functions of its SQLite cannot be found; use apsw (pip install apsw, then "
        "braid_sqlite.connect(..., module=apsw)), pysqlite3 (pip install pysqlite3-binary), or a "
        "Python that was built with --enable-loadable-sqlite-extensions"
    )
    extension = sys.modules.get("_sqlite3") if module == "sqlite3" else None
    try:
        # The search covers the libraries that the extension module is linked with.
        sqlite = ctypes.CDLL(getattr(extension, "__file__", None))
        addresses = [
            ctypes.cast(getattr(sqlite, name), ctypes.c_void_p).value for name in _FUNCTIONS
        ]
        source = sqlite.sqlite3_sourceid
    except (AttributeError, OSError) as error:
        raise ExtensionsUnavailable(advice) from error
    source.restype = ctypes.c_char_p
    (expected,) = connection.execute("SELECT sqlite_source_id()").fetchone()
    if extension is None or source().decode() != expected:
        raise ExtensionsUnavailable(advice)
    library = ctypes.CDLL(path)
    # The structure starts with its size.
    count = 1 + len(_FUNCTIONS)
    size = count * ctypes.sizeof(ctypes.c_void_p)
    functions = (ctypes.c_void_p * count)(size, *addresses)
    if library.braid_sqlite_register(ctypes.byref(functions), 0) != 0:
        version = sqlite3.sqlite_version
        raise BraidSqliteError(
            f"cannot register the VFS braid with SQLite {version}: it needs 3.32.0 or newer"
        )


def connect(
    database: str | os.PathLike[str],
    *,
    log: str | os.PathLike[str] | None = None,
    memory: Literal["auto", "dax", "file", "emulated"] | None = None,
    mode: str | None = None,
    autocheckpoint: int = 10_000,
    module: ModuleType = sqlite3,
    **options: Any,
) -> Any:
    """Open a database in WAL mode with its log behind the VFS ``braid``.

    ``log`` is a directory for the log, in persistent memory or under ``/dev/shm``; without it, the log
    is a file next to the database. ``memory`` and ``mode`` are the parameters ``braid_memory`` and
    ``braid_mode``. ``autocheckpoint`` is the number of frames before SQLite starts a checkpoint.
    ``module`` is ``sqlite3``, ``pysqlite3.dbapi2`` or ``apsw``; its ``connect`` or ``Connection`` gets
    the other options. An error has the reason of the extension, which SQLite alone does not report.
    """
    parameters = {"vfs": "braid"}
    if log is not None:
        parameters["braid_log"] = os.path.abspath(os.fspath(log))
    if memory is not None:
        parameters["braid_memory"] = memory
    if mode is not None:
        parameters["braid_mode"] = mode
    path = quote(os.path.abspath(os.fspath(database)))
    uri = f"file:{path}?{urlencode(parameters, quote_via=quote)}"
    loader = _open(module, ":memory:")
    try:
        load(loader)
    finally:
        loader.close()
    # Forgets what was refused before.
    _reason(module)
    try:
        connection = _open(module, uri, **options)
        try:
            cursor = connection.cursor()
            (journal,) = next(iter(cursor.execute("PRAGMA journal_mode = WAL")))
            if journal != "wal":
                raise BraidSqliteError(f"cannot set journal_mode = WAL: it is {journal}")
            cursor.execute(f"PRAGMA wal_autocheckpoint = {int(autocheckpoint)}")
            cursor.execute("PRAGMA synchronous = FULL")
            cursor.close()
        except BaseException:
            connection.close()
            raise
    except Exception as error:
        reason = _reason(module)
        if reason is None:
            raise
        explained = type(error)(f"{error}: {reason}")
        # SQLite's codes.
        explained.__dict__.update(error.__dict__)
        raise explained from error
    return connection


def _open(module: ModuleType, name: str, **options: Any) -> Any:
    """Open a connection of a module, with a path or a URI."""
    if hasattr(module, "apsw_version") or hasattr(module, "apswversion"):
        flags = module.SQLITE_OPEN_READWRITE | module.SQLITE_OPEN_CREATE | module.SQLITE_OPEN_URI
        return module.Connection(name, **{"flags": flags, **options})
    return module.connect(name, uri=True, **options)


def _reason(module: ModuleType) -> str | None:
    """Why the extension refused the newest call of this thread; forgets it."""
    connection = _open(module, ":memory:")
    try:
        (text,) = next(iter(connection.cursor().execute("SELECT braid_error()")))
    finally:
        connection.close()
    return None if text is None else str(text)


def wait(connection: Any, schema: str | None = None) -> None:
    """Wait until everything that was committed is durable, in all databases of a connection or in one.

    In the mode ``ticket``, commits do not wait for the device: commit for several clients, wait once, and
    then answer them. The changes of a transaction that is still open are not waited for. ``schema`` is
    ``"main"`` or the name of an attached database. Other threads run meanwhile.

    Raises the module's error (``sqlite3.OperationalError``, ``apsw.Error``) if the device failed, or if
    no database of the connection was opened with the VFS ``braid``.
    """
    cursor = connection.cursor()
    try:
        for _ in cursor.execute("SELECT braid_wait(?)", (schema,)):
            pass
    finally:
        cursor.close()
