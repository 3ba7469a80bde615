from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import SMALL

import braid


@pytest.fixture
def db() -> Iterator[braid.Database]:
    with braid.in_memory(**SMALL) as database:
        yield database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"
