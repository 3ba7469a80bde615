from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import SMALL

import braid


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Ends a test that hangs, and shows where."""
    faulthandler.dump_traceback_later(900, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def db() -> Iterator[braid.Database]:
    with braid.in_memory(**SMALL) as database:
        yield database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"
