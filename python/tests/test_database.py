"""Opening, closing, options, reports."""

from __future__ import annotations

import gc
import inspect
import pickle
import queue
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support import SMALL

import braid


def test_log_directory(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    with braid.open(data, log_directory=log, log_device="pmem-emulated", **SMALL) as db:
        db.open_table("t", key=str, value=int)["a"] = 1
    assert any(file.name.endswith(".seg") for file in log.iterdir())
    log.rename(tmp_path / "moved")
    with pytest.raises(braid.LogDirectoryError, match="does not exist"):
        braid.open(data, **SMALL)
    with braid.open(data, log_directory=tmp_path / "moved", **SMALL) as db:
        assert db.open_table("t", key=str, value=int)["a"] == 1


def test_tablespaces(tmp_path: Path) -> None:
    data, disk = tmp_path / "data", tmp_path / "disk"
    with braid.open(data, **SMALL) as db:
        assert db.tablespace_names() == []
        with pytest.raises(braid.OptionError):
            db.create_tablespace("disk", disk, pool_bytes=1)
        with pytest.raises(braid.TablespaceError, match="memory node 7777"):
            db.create_tablespace("disk", disk, memory_node=7777)
        with pytest.raises(braid.TablespaceError, match="no tablespace"):
            db.open_table("there", key=str, value=int, tablespace="disk")
        with pytest.raises(braid.TablespaceError, match="data file is there"):
            db.create_tablespace("disk", disk, pool_bytes=1 << 20, log_directory=disk)
        db.create_tablespace("disk", disk, pool_bytes=1 << 20, log_directory=tmp_path / "log")
        assert db.tablespace_names() == ["disk"]
        with pytest.raises(braid.TablespaceError, match="it exists"):
            db.create_tablespace("disk", tmp_path / "other")
        here = db.open_table("here", key=str, value=int)
        there = db.open_table("there", key=str, value=int, tablespace="disk")
        with pytest.raises(braid.TablespaceError, match="main"):
            db.open_table("here", key=str, value=int, tablespace="disk")
        with db.begin() as tx:
            tx.insert(here, "a", 1)
            tx.insert(there, "a", 2)
        with db.bulk_load("loaded", key=str, value=int, tablespace="disk") as loader:
            loader.insert("a", 3)
        with pytest.raises(braid.TablespaceError, match="no tablespace"):
            db.bulk_load("other", tablespace="nowhere")
        db.backup(tmp_path / "backup")
    assert braid.backup_info(tmp_path / "backup").tablespaces == ["disk"]
    with pytest.raises(braid.BackupError, match="no place was given"):
        braid.restore([tmp_path / "backup"], tmp_path / "restored")
    places = {"disk": tmp_path / "restored disk"}
    logs = {"disk": tmp_path / "restored log"}
    braid.restore([tmp_path / "backup"], tmp_path / "restored", tablespaces=places, tablespace_logs=logs)
    with braid.open(tmp_path / "restored", **SMALL) as db:
        assert db.open_table("loaded", key=str, value=int, tablespace="disk")["a"] == 3
    disk.rename(tmp_path / "gone")
    with pytest.raises(braid.TablespaceError, match="disk"):
        braid.open(data, **SMALL)
    with braid.open(data, read_only=True) as db:
        assert db.open_table("here", key=str, value=int)["a"] == 1
        with pytest.raises(braid.TablespaceError, match="disk"):
            db.open_table("there", key=str, value=int)
    moved = {"disk": tmp_path / "gone"}
    assert braid.verify(data, tablespaces=moved).findings == []
    (tmp_path / "log").rename(tmp_path / "gone log")
    assert any("log" in finding for finding in braid.verify(data, tablespaces=moved).findings)
    logs = {"disk": tmp_path / "gone log"}
    assert braid.verify(data, tablespaces=moved, tablespace_logs=logs).findings == []
    (tmp_path / "gone log").rename(tmp_path / "log")
    assert any("disk" in finding for finding in braid.verify(data).findings)
    assert 'tablespace "disk"' in braid.dump(data, tablespaces=moved)
    braid.salvage(data, tmp_path / "salvaged", tablespaces=moved)
    with braid.open(tmp_path / "salvaged", **SMALL) as db:
        assert db.open_table("there", key=str, value=int)["a"] == 2
    (tmp_path / "gone").rename(disk)
    with braid.open(data, **SMALL) as db, braid.open(data, read_only=True) as reader:
        # Next to the writer.
        assert reader.open_table("there", key=str, value=int)["a"] == 2
        db.open_table("here", key=str, value=int)["a"] = 5
        db.open_table("there", key=str, value=int)["a"] = 5
        assert reader.refresh()
        assert reader.open_table("there", key=str, value=int)["a"] == 5
        assert braid.verify(data).findings == []
        db.open_table("there", key=str, value=int)["a"] = 2
    with braid.open(data, **SMALL) as db:
        there = db.open_table("there", key=str, value=int)
        assert there["a"] == 2
        with pytest.raises(braid.TablespaceError, match="there"):
            db.drop_tablespace("disk")
        with pytest.raises(braid.TablespaceError, match="nowhere"):
            db.move_table("there", "nowhere")
        with pytest.raises(braid.TableNotFoundError):
            db.move_table("nothing", None)
        report = db.move_table("there", None)
        assert report.records == 1 and report.bytes > 0
        assert report.writers_waited > timedelta(0)
        with pytest.raises(braid.TablespaceError, match="main"):
            db.open_table("there", key=str, value=int, tablespace="disk")
        there["b"] = 3
        assert db.move_table("there", "disk").records == 2
        assert (there["a"], there["b"]) == (2, 3)
        with db.begin() as tx, pytest.raises(braid.WouldDeadlockError):
            tx.insert(there, "c", 4)
            db.move_table("there", None)
        del there
        db.drop_table("there")
        assert db.open_table("loaded", key=str, value=int, tablespace="disk")["a"] == 3
        db.drop_table("loaded")
        db.drop_tablespace("disk")
        assert db.tablespace_names() == []


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "serial"},
        {"protocol": "gsn", "strands": 2, "lanes": 2},
        {"protocol": "epoch", "epoch": timedelta(milliseconds=1)},
        {"device": "file", "segment_bytes": 1 << 20, "discard": True, "numa": False},
        {"device": "memory"},
        {"pool_bytes": 1 << 20, "checkpoint_log_bytes": 1 << 20, "max_log_bytes": 1 << 28, "preallocated_log_bytes": 1 << 26},
        {"durability": "none"},
        {"device": "pmem-emulated", "pmem_commit": "eager", "pmem_lines": False, "pmem_in_place": False},
        {"durability": timedelta(milliseconds=1), "flushes_in_flight": 2, "group_size": 4},
    ],
)
def test_options(path: Path, options: Any) -> None:
    with braid.open(path, **(SMALL | options)) as db:
        table = db.open_table("t", key=str, value=int)
        table["a"] = 1
        db.sync()
        assert table["a"] == 1
        assert db.stats().protocol == options.get("protocol", "glsn")
        assert db.path == path
        assert str(path) in repr(db)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"protocol": "best"}, braid.OptionError, '"best" is not a commit protocol; choose one of serial'),
        ({"protocol": 5}, TypeError, "option protocol: must be a str, not int"),
        ({"device": "tape"}, braid.OptionError, "choose one of auto, uring"),
        ({"pmem_commit": "late"}, braid.OptionError, "choose one of eager, lazy, checksum"),
        ({"pool_bytes": 5}, braid.OptionError, "pool_bytes: must be from 1 MiB to 4 TiB"),
        ({"pool_bytes": -5}, braid.OptionError, "pool_bytes: -5 is out of range"),
        ({"pool_bytes": "big"}, TypeError, "option pool_bytes: must be an int, not str"),
        ({"pool_bytes": True}, TypeError, "option pool_bytes: must be an int, not bool"),
        ({"pool_bytes": 1e9}, TypeError, "option pool_bytes: must be an int, not float"),
        ({"strands": 1000}, braid.OptionError, "strands: must be from 1 to 256"),
        ({"lanes": 0}, braid.OptionError, "lanes"),
        ({"epoch": 5}, TypeError, "option epoch: must be a datetime.timedelta, not int"),
        ({"epoch": timedelta(days=1)}, braid.OptionError, "epoch: must be from 10"),
        ({"durability": timedelta(seconds=-1)}, braid.OptionError, "negative"),
        ({"durability": "sometimes"}, braid.OptionError, '"immediate", "none"'),
        ({"durability": 5}, TypeError, "option durability"),
        ({"create_if_missing": "yes"}, TypeError, "True or False"),
        ({"cache": 5}, TypeError, 'unknown option "cache"; there are archive'),
    ],
)
def test_wrong_options(path: Path, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        braid.open(path, **(SMALL | options))
    with pytest.raises(error, match=message):
        braid.in_memory(**options)
    assert not path.exists()


def test_wrong_options_of_a_transaction(db: braid.Database) -> None:
    wrong: list[Any] = [{"isolation": "none"}, {"durability": "maybe"}]
    for options in wrong:
        with pytest.raises(braid.OptionError):
            db.begin(**options)
        with pytest.raises(ValueError):
            db.transact(lambda tx: None, **options)


def test_the_stub_names_every_option() -> None:
    stub = (Path(braid.__file__).parent / "_braid.pyi").read_text()
    with pytest.raises(TypeError) as error:
        braid.in_memory(nonsense=1)  # type: ignore[call-arg]
    for option in str(error.value).split("there are ")[1].split(", "):
        assert f"    {option}: " in stub


def test_opening_a_missing_database(path: Path, tmp_path: Path) -> None:
    with pytest.raises(braid.NotADatabaseError, match="does not exist"):
        braid.open(path, create_if_missing=False, **SMALL)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(braid.NotADatabaseError):
        braid.open(file)
    with pytest.raises(braid.NotADatabaseError):
        braid.verify(path)
    with pytest.raises(TypeError):
        braid.open(5)  # type: ignore[arg-type]
    with pytest.raises((braid.Error, ValueError)):
        braid.open("a\0b")


def test_opening_twice(path: Path) -> None:
    with braid.open(path, **SMALL):
        with pytest.raises(braid.LockedError, match="close it there first"):
            braid.open(path, **SMALL)
        # Readers work next to the writer.
        assert braid.verify(path).findings == []
    with braid.open(str(path)):
        pass


def test_a_closed_database_refuses_everything(path: Path) -> None:
    db = braid.open(path, **SMALL)
    table = db.open_table("t", key=str, value=int)
    table["a"] = 1
    tx, snapshot, iterator = db.begin(), db.snapshot(), table.range()
    assert not db.closed
    db.close()
    db.close()
    assert db.closed and repr(db).endswith("closed>")
    uses: list[Any] = [
        lambda: table["a"],
        lambda: table.get("a"),
        lambda: "a" in table,
        lambda: len(table),
        lambda: bool(table),
        lambda: list(table),
        lambda: table.first(),
        lambda: table.__setitem__("a", 1),
        lambda: table.pop("a"),
        lambda: table.popitem(),
        lambda: table.clear(),
        lambda: table.update(a=1),
        lambda: tx.get(table, "a"),
        lambda: tx.insert(table, "a", 1),
        lambda: snapshot.get(table, "a"),
        lambda: list(iterator),
        lambda: db.open_table("t", key=str, value=int),
        lambda: db.existing_table("t"),
        lambda: db.table_names(),
        lambda: db.drop_table("t"),
        lambda: db.begin(),
        lambda: db.snapshot(),
        lambda: db.transact(lambda tx: None),
        lambda: db.sync(),
        lambda: db.checkpoint(),
    ]
    for at, use in enumerate(uses):
        with pytest.raises(braid.ClosedError):
            print(at, use())
    assert db.health().status == "closed"
    assert db.stats().commits >= 1


def test_a_database_closes_with_its_last_object(path: Path) -> None:
    table = braid.open(path, **SMALL).open_table("t")
    gc.collect()
    table[b"a"] = b""
    with pytest.raises(braid.LockedError):
        braid.open(path, **SMALL)
    del table
    gc.collect()
    with braid.open(path, **SMALL) as db:
        assert db.recovery().transactions == 0, "it was closed cleanly"


def test_a_block_closes_on_an_exception(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), braid.open(path, **SMALL) as db:
        raise ZeroDivisionError
    assert db.closed


def test_reports(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        assert db.health() == braid.Health("good", None)
        table = db.open_table("t", key=str, value=int)
        for i in range(10):
            table[str(i)] = i
        stats = db.stats()
        assert stats.commits == 11
        assert stats.log.flushes >= 11
        assert stats.log.write_time > timedelta()
        assert stats.store.page_size >= 4096
        with db.snapshot() as snapshot:
            assert db.stats().snapshots == 1
            assert db.stats().oldest_snapshot == snapshot.seqno
        before = db.stats().checkpoints
        db.checkpoint()
        assert db.stats().checkpoints == before + 1
        assert db.recovery().transactions == 0
    report = braid.verify(path)
    assert report.findings == []
    assert (report.tables, report.records) == (2, 12)


def test_verify_reports_damage(path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        db.open_table("t", key=int, value=bytes).update((i, bytes(100)) for i in range(1000))
    data = path / "data.braid"
    contents = bytearray(data.read_bytes())
    size = 8192
    used = [at for at in range(2 * size, len(contents), size) if any(contents[at : at + size])]
    for at in used:
        contents[at + size // 2] ^= 1
    data.write_bytes(contents)
    report = braid.verify(path)
    assert report.findings
    with pytest.raises(braid.CorruptError, match="restore a backup or salvage what can be read") as error:
        with braid.open(path, **SMALL) as db:
            print(dict(db.open_table("t", key=int, value=bytes)))
    assert error.value.location


def test_the_rest_is_saved(path: Path, tmp_path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        db.open_table("t", key=int, value=bytes).update((i, bytes(1000)) for i in range(1000))
    saved = braid.salvage(path, tmp_path / "whole")
    # The catalog has entries, too.
    assert (saved.tables, saved.losses) == (1, []) and saved.entries > 1000
    data = path / "data.braid"
    contents = bytearray(data.read_bytes())
    size = 8192
    used = [at for at in range(2 * size, len(contents), size) if any(contents[at : at + size])]
    contents[used[len(used) // 2] + size // 2] ^= 1
    data.write_bytes(contents)
    assert braid.verify(path).findings
    saved = braid.salvage(path, tmp_path / "left")
    assert saved.losses or saved.damages
    with braid.open(tmp_path / "left", **SMALL) as db:
        left = dict(db.open_table("t", key=int, value=bytes))
    assert 900 <= len(left) <= 1000 and set(left.values()) == {bytes(1000)}
    with pytest.raises(braid.NotADatabaseError):
        braid.salvage(path, tmp_path / "left")


def test_upgrading_and_dumping(path: Path, tmp_path: Path) -> None:
    with braid.open(path, **SMALL) as db:
        db.open_table("t", key=int, value=int)[1] = 2
        # Readers work next to the writer.
        assert braid.dump(path).startswith("protocol glsn")
        with pytest.raises(braid.LockedError):
            braid.upgrade(path)
    report = braid.upgrade(path)
    assert report.from_format == report.to_format > 0
    assert braid.dump(path).startswith("protocol glsn")
    for function in (braid.upgrade, braid.dump):
        with pytest.raises(braid.NotADatabaseError):
            function(tmp_path / "none")


def test_changes_of_health_are_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: queue.Queue[braid.Health] = queue.Queue()
    braid.open(path, on_health_change=reported.put, stats_file=True, **SMALL).close()
    assert reported.get(timeout=600).status == "closed"
    assert not (path / "STATS").exists()
    # An exception of the listener is unraisable, and has no other effect.
    unraisable: queue.Queue[Any] = queue.Queue()
    monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.put(args.exc_value))

    def raising(health: braid.Health) -> None:
        raise ValueError(health.status)

    braid.in_memory(on_health_change=raising, **SMALL).close()
    assert str(unraisable.get(timeout=600)) == "closed"
    with pytest.raises(TypeError, match="on_health_change: must be a function, not int"):
        braid.open(path, on_health_change=5)  # type: ignore[arg-type]


def test_every_count_is_reported(db: braid.Database) -> None:
    stats = db.stats()
    assert stats.archived is None and not stats.poisoned and not stats.checkpoint_failing
    assert stats.expired == stats.changes_kept_from == stats.store.pages_read_ahead == 0
    gates = {hold.gate for hold in stats.gate_holds}
    assert {"page gate", "garbage"} <= gates
    assert all(hold.longest <= hold.elapsed for hold in stats.gate_holds)


def test_errors_have_one_base_and_can_be_pickled() -> None:
    errors = [value for value in vars(braid).values() if inspect.isclass(value)]
    errors = [value for value in errors if issubclass(value, BaseException)]
    assert len(errors) == 38
    assert all(issubclass(error, braid.Error) for error in errors)
    error = braid.ConflictError("message")
    error.kind = "range"
    assert pickle.loads(pickle.dumps(error)).kind == "range"
    assert braid.IoError(5, "broken").errno == 5
