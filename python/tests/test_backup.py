"""Backups, archives, and restoring to a point."""

from __future__ import annotations

import io
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from support import SMALL

import braid


def value_in(path: Path) -> int:
    with braid.open(path, read_only=True, **SMALL) as db:
        return db.open_table("t", key=str, value=int)["k"]


def test_backups_are_restored(tmp_path: Path) -> None:
    full, since, archive = tmp_path / "full", tmp_path / "since", tmp_path / "archive"
    calls: list[tuple[int, int]] = []
    interval = timedelta(milliseconds=50)
    with braid.open(tmp_path / "db", archive=archive, archive_interval=interval, **SMALL) as db:
        table = db.open_table("t", key=str, value=int)
        table["k"] = 1
        report = db.backup(full, progress=lambda *counts: calls.append(counts))
        assert report.path == full and report.pages == report.pages_total == calls[-1][0]
        assert report.written_bytes > 0 and report.read_bytes > 0
        table["k"] = 2
        second = db.backup(str(since), parent=full)
        assert second.seqno > report.seqno and second.pages < second.pages_total
        table["k"] = 3
        with db.begin() as tx:
            tx.insert(table, "k", 4)
            number = tx.commit()
        table["k"] = 5
        archived = db.archive_now()
        assert archived is not None and archived > number
        (tmp_path / "backups").mkdir()
        named = db.backup(tmp_path / "backups").path
        assert named is not None and named.parent == tmp_path / "backups" and named.exists()
        with pytest.raises(braid.BackupError, match="full"):
            db.backup(full)
        with pytest.raises(braid.BackupError):
            db.backup(tmp_path / "no", parent=__file__)
    info = braid.backup_info(since)
    assert (info.seqno, info.parent) == (second.seqno, report.seqno)
    assert info.time.tzinfo is not None
    assert abs(datetime.now(timezone.utc) - info.time) < timedelta(hours=1)
    assert braid.backup_info(full).parent is None
    assert braid.backup_info(full).identity == info.identity > 0

    calls.clear()
    restored = braid.restore(
        [full], tmp_path / "r1", progress=lambda *counts: calls.append(counts), device="file"
    )
    assert restored.seqno == restored.backup_seqno == report.seqno and restored.pages > 0
    assert calls
    assert value_in(tmp_path / "r1") == 1
    braid.restore((full, since), tmp_path / "r2", pool_bytes=1 << 20)
    assert value_in(tmp_path / "r2") == 2
    restored = braid.restore([full], tmp_path / "r3", archive=archive, until=number)
    assert restored.seqno == number and restored.transactions > 0
    assert value_in(tmp_path / "r3") == 4
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    braid.restore([full, since], tmp_path / "r4", archive=archive, until=later)
    assert value_in(tmp_path / "r4") == 5

    to = tmp_path / "never"
    for wrong in ([], [since], [since, full]):
        with pytest.raises(braid.BackupError):
            braid.restore(wrong, to)
    with pytest.raises(braid.BackupError):
        braid.restore([full], tmp_path / "r1")
    with pytest.raises(braid.BackupError):
        braid.restore([full], to, until=number)
    with pytest.raises(TypeError, match="a list of paths"):
        braid.restore(str(full), to)
    wrong_points: list[Any] = ["monday", True, datetime.now()]
    for until in wrong_points:
        with pytest.raises(TypeError, match="until"):
            braid.restore([full], to, until=until)
    wrong_options: list[Any] = [{"device": "memory"}, {"device": "tape"}, {"until": -1}]
    for options in wrong_options:
        with pytest.raises(braid.OptionError):
            braid.restore([full], to, **options)
    with pytest.raises(braid.BackupError):
        braid.backup_info(__file__)
    with pytest.raises(braid.IoError, match="missing"):
        braid.backup_info(tmp_path / "missing")


def test_exceptions_of_progress_are_raised(db: braid.Database, tmp_path: Path) -> None:
    db.open_table("t", key=str, value=int)["k"] = 1

    def progress(pages: int, total: int) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        db.backup(tmp_path / "full", progress=progress)
    assert db.archive_now() is None
    db.close()
    with pytest.raises(braid.ClosedError):
        db.backup(tmp_path / "closed")


def test_compacting(db: braid.Database) -> None:
    table = db.open_table("t", key=int, value=bytes)
    for start in range(0, 20_000, 1_000):
        table.update((n, bytes(200)) for n in range(start, start + 1_000))
    db.checkpoint()
    db.drop_table("t")
    del table
    report = db.compact()
    assert report.bytes_after < report.bytes_before and report.checkpoints > 0


class Raising(io.BytesIO):
    """Neither takes nor gives."""

    def write(self, data: object, /) -> int:
        raise ValueError("full up")

    def read(self, size: int | None = -1, /) -> bytes:
        raise ValueError("torn")


def test_backups_to_and_from_streams(path: Path, tmp_path: Path) -> None:
    class Pieces(io.BytesIO):
        """Takes and gives less than it is asked to."""

        def write(self, data: Any, /) -> int:
            return super().write(data[:1000])

        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 700))

    full, since = io.BytesIO(), Pieces()
    with braid.open(path, **SMALL) as db:
        table = db.open_table("t", key=str, value=int)
        table["k"] = 1
        report = db.backup(full)
        assert report.path is None and report.written_bytes == len(full.getvalue())
        db.backup(tmp_path / "full")
        table["k"] = 2
        second = db.backup(since, parent=tmp_path / "full")
        assert second.seqno > report.seqno
        with pytest.raises(ValueError, match="full up"):
            db.backup(Raising())
        with pytest.raises(TypeError):
            db.backup(5)  # type: ignore[arg-type]
    full.seek(0)
    braid.restore([full], tmp_path / "r1")
    assert value_in(tmp_path / "r1") == 1
    since.seek(0)
    # A file and a stream in one chain.
    restored = braid.restore([tmp_path / "full", since], tmp_path / "r2")
    assert restored.seqno == second.seqno and value_in(tmp_path / "r2") == 2
    with pytest.raises(braid.BackupError):
        braid.restore([io.BytesIO(full.getvalue()[:-5000])], tmp_path / "short")
    with pytest.raises(ValueError, match="torn"):
        braid.restore([Raising()], tmp_path / "torn")
