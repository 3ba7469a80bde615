"""Builds the wheel of braid-sqlite: Python files and the library that Cargo makes.

A build backend (PEP 517) of its own, since the library has nothing of Python's: one wheel serves every
version of Python, and building it needs Cargo alone.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
NAME = "braid_sqlite"
LICENSES = ["LICENSE-APACHE", "LICENSE-MIT"]


def _field(name: str) -> str:
    text = (HERE / "pyproject.toml").read_text()
    found = re.search(rf'^{name} = "(.*)"$', text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"pyproject.toml has no {name}")
    return found.group(1)


def _library() -> Path:
    """Builds the library. BRAID_PROFILE selects Cargo's profile, by default `dist`."""
    profile = os.environ.get("BRAID_PROFILE", "dist")
    command = ["cargo", "build", "--locked", "--package", "braid-sqlite", "--profile", profile]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"))
    suffix = "dylib" if sysconfig.get_platform().startswith("macosx") else "so"
    return target / ("debug" if profile == "dev" else profile) / f"libbraid_sqlite.{suffix}"


def _tag() -> str:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"py3-none-{platform}"


def _metadata() -> dict[str, bytes]:
    """The files of the wheel's directory of metadata, without the record."""
    metadata = [
        "Metadata-Version: 2.4",
        "Name: braid-sqlite",
        f"Version: {_field('version')}",
        f"Summary: {_field('description')}",
        f"Requires-Python: {_field('requires-python')}",
        f"License-Expression: {_field('license')}",
        *(f"License-File: {name}" for name in LICENSES),
        "Description-Content-Type: text/markdown",
        "",
        (HERE / "README.md").read_text(),
    ]
    wheel = [
        "Wheel-Version: 1.0",
        "Generator: braid_sqlite_build",
        "Root-Is-Purelib: false",
        f"Tag: {_tag()}",
        "",
    ]
    files = {"METADATA": "\n".join(metadata).encode(), "WHEEL": "\n".join(wheel).encode()}
    for name in LICENSES:
        files[f"licenses/{name}"] = (ROOT / name).read_bytes()
    return files


def build_wheel(
    wheel_directory: str,
    config_settings: object = None,
    metadata_directory: str | None = None,
) -> str:
    package = HERE / "lib" / NAME
    sources = sorted(path for path in package.iterdir() if path.suffix == ".py" or path.name == "py.typed")
    files = {f"{NAME}/{path.name}": path.read_bytes() for path in sources}
    library = _library()
    files[f"{NAME}/{library.name}"] = library.read_bytes()
    information = f"{NAME}-{_field('version')}.dist-info"
    files |= {f"{information}/{name}": data for name, data in _metadata().items()}
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    record += f"{information}/RECORD,,\n"
    files[f"{information}/RECORD"] = record.encode()
    wheel = f"{NAME}-{_field('version')}-{_tag()}.whl"
    with zipfile.ZipFile(Path(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            # The oldest time that the format has: equal contents make equal wheels.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return wheel


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    raise NotImplementedError(
        "braid-sqlite has no source distribution: the library's sources are the whole repository; "
        "run pip wheel ./python/sqlite in a checkout of it"
    )
