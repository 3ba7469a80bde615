from __future__ import annotations

import gc
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import braid_sqlite


def modules() -> Iterator[Any]:
    for name in ["sqlite3", "apsw", "pysqlite3.dbapi2"]:
        try:
            __import__(name)
        except ImportError:
            reason = pytest.mark.skip(reason=f"{name} is not installed")
            yield pytest.param(None, id=name, marks=reason)
        else:
            yield pytest.param(sys.modules[name], id=name)


@pytest.fixture(params=modules())
def module(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found


def rows(db: Any, sql: str) -> list[Any]:
    return list(db.cursor().execute(sql))


def execute(db: Any, sql: str) -> None:
    rows(db, sql)
    if hasattr(db, "commit"):
        db.commit()


def stats(db: Any) -> dict[str, str]:
    ((answer,),) = rows(db, "PRAGMA braid_stats")
    return dict(re.findall(r"(\w+)=(\S+)", answer))


def test_a_database_is_logged_and_plain_afterwards(module: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a db?.sqlite"
    logs = tmp_path / "logs & more"
    logs.mkdir()
    db = braid_sqlite.connect(path, log=logs, memory="emulated", mode="checksum", module=module)
    execute(db, "CREATE TABLE t (a)")
    execute(db, "INSERT INTO t VALUES (1), (2)")
    found = stats(db)
    assert found["mode"] == "checksum"
    assert int(found["frames"]) > 0
    assert [entry.suffix for entry in logs.iterdir()] == [".braid"]
    assert rows(db, "PRAGMA wal_autocheckpoint") == [(10_000,)]
    assert rows(db, "PRAGMA synchronous") == [(2,)]
    # Another process, with Python's SQLite and without the extension.
    program = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT sum(a) FROM t").fetchall())
"""
    command = [sys.executable, "-c", program, str(path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "Error" in refused.stderr
    db.close()
    del db
    gc.collect()
    assert list(logs.iterdir()) == []
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    assert plain.stdout == "[(3,)]\n"


def test_a_program_with_its_own_uris_loads_the_extension(tmp_path: Path) -> None:
    for _ in range(2):
        loader = sqlite3.connect(":memory:")
        braid_sqlite.load(loader)
        loader.close()
    uri = f"file:{tmp_path}/app.db?vfs=braid&braid_memory=emulated"
    db = sqlite3.connect(uri, uri=True)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (a)")
    assert stats(db)["log"] == f"{tmp_path}/app.db-braid"
    db.close()


def test_the_library_is_in_the_package() -> None:
    assert Path(braid_sqlite.library_path()).is_file()


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    program = """
import os, signal, sys, braid_sqlite
db = braid_sqlite.connect(sys.argv[1], memory="emulated", isolation_level=None)
db.execute("CREATE TABLE t (a)")
for number in range(100):
    db.execute("INSERT INTO t VALUES (?)", (number,))
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "app.db"
    killed = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert killed.returncode == -9
    db = braid_sqlite.connect(path, memory="emulated")
    assert rows(db, "SELECT count(*) FROM t") == [(100,)]
    assert rows(db, "PRAGMA integrity_check") == [("ok",)]
    db.close()


def test_a_wait_makes_commits_durable(module: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    db = braid_sqlite.connect(path, memory="emulated", mode="ticket", module=module)
    execute(db, "CREATE TABLE t (a)")
    for schema in [None, "main"]:
        execute(db, "INSERT INTO t VALUES (1)")
        found = stats(db)
        assert int(found["durable_bytes"]) < int(found["log_bytes"])
        braid_sqlite.wait(db, schema)
        found = stats(db)
        assert found["durable_bytes"] == found["log_bytes"]
    with pytest.raises(Exception, match="cannot wait for the database \"other\": there is none"):
        braid_sqlite.wait(db, "other")
    db.close()
    plain = module.Connection(":memory:") if hasattr(module, "Connection") else None
    assert plain is not None
    with pytest.raises(Exception, match="no database of the connection was opened"):
        braid_sqlite.wait(plain)
    plain.close()


def test_an_error_has_the_reason(tmp_path: Path) -> None:
    for options, reason in [
        ({"log": tmp_path / "missing"}, "missing: it is not an absolute path of a directory"),
        ({"memory": "tape"}, "braid_memory"),
        ({"mode": "never"}, "not a commit mode"),
    ]:
        with pytest.raises(sqlite3.OperationalError, match=reason) as raised:
            braid_sqlite.connect(tmp_path / "app.db", **options)  # type: ignore[arg-type]
        if sys.version_info >= (3, 11):
            assert raised.value.sqlite_errorname == "SQLITE_CANTOPEN"
    # An error of SQLite's own has no reason of the extension, nor an earlier one.
    with pytest.raises(sqlite3.OperationalError, match="file$"):
        braid_sqlite.connect(tmp_path / "missing" / "app.db")


def test_a_refused_database_says_why(module: ModuleType, tmp_path: Path) -> None:
    stock = sqlite3.connect(tmp_path / "app.db")
    stock.execute("PRAGMA journal_mode = WAL")
    stock.execute("CREATE TABLE t (a)")
    with pytest.raises(Exception, match="it has frames of SQLite without this extension"):
        braid_sqlite.connect(tmp_path / "app.db", module=module)
    stock.close()
    braid_sqlite.connect(tmp_path / "app.db", module=module).close()


class WithoutExtensions:
    """A connection whose module is linked with no SQLite that can be found."""

    def execute(self, sql: str) -> Any:
        return self

    def fetchone(self) -> tuple[str]:
        return ("another SQLite",)


@pytest.mark.parametrize("name", ["sqlite3", "another_module"])
def test_missing_support_is_explained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(braid_sqlite, "_loaded", set())
    monkeypatch.setattr(WithoutExtensions, "__module__", name)
    with pytest.raises(braid_sqlite.ExtensionsUnavailable, match="pip install apsw"):
        braid_sqlite.load(WithoutExtensions())


def test_a_failing_load_names_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loader = sqlite3.connect(":memory:")
    if not hasattr(loader, "enable_load_extension"):
        pytest.skip("sqlite3 loads no extensions here")
    monkeypatch.setattr(braid_sqlite, "_loaded", set())
    missing = os.fspath(tmp_path / "libbraid_sqlite.so")
    monkeypatch.setattr(braid_sqlite, "library_path", lambda: missing)
    with pytest.raises(braid_sqlite.BraidSqliteError, match="cannot load"):
        braid_sqlite.load(loader)
