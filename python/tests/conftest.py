from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import braid

SMALL = 4 << 20
"""Enough memory for pages in a test."""


@pytest.fixture
def db() -> Iterator[braid.Database]:
    with braid.in_memory(pool_bytes=SMALL) as database:
        yield database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"
