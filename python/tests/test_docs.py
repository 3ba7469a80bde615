"""The examples in the documentation work."""

from __future__ import annotations

import doctest
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import braid

REPOSITORY = Path(__file__).parents[2]


def test_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    names: dict[str, Any] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)


def test_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = REPOSITORY / "python" / "README.md"
    blocks = re.findall(r"^```python\n(.*?)^```", file.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, file
    exec(compile(blocks[0], str(file), "exec"), {})


def test_the_package() -> None:
    assert doctest.testmod(braid).failed == 0


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ledger.py", str(tmp_path / "db")])
    example = REPOSITORY / "python" / "examples" / "ledger.py"
    for _ in range(2):
        runpy.run_path(str(example), run_name="__main__")


@pytest.mark.parametrize("name", ["sqlite.py"])
def test_the_benchmark_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--directory", str(tmp_path), "--rounds", "1", "--seconds", "0.01", "--rows", "500"]
    monkeypatch.setattr(sys, "argv", [name, *options])
    runpy.run_path(str(REPOSITORY / "python" / "benchmarks" / name), run_name="__main__")
    assert "waited commits of 1 row, 8 threads" in capsys.readouterr().out
