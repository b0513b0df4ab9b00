# SPDX-License-Identifier: Apache-2.0
"""QEMU's source package of this Debian release, unpacked by apt into ``.cache``.

The package is never part of this repository.  ``apt-get`` checks its signature and hashes.
"""

import contextlib
import os
import pathlib
import re
import subprocess

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
CACHE = CHECKOUT / ".cache" / "outside"
PACKAGE = "qemu"
_SYSTEM = pathlib.Path("/etc/apt")
_PARTS = ("*/tests/qemu-iotests", "*/python/qemu", "*/scripts/qapi")
_DEADLINE_S = 600


def find_iotests() -> pathlib.Path:
    """Return the folder of QEMU's iotests; fetch the package if it is missing."""
    for _ in range(2):
        with contextlib.suppress(StopIteration):
            return next(CACHE.glob("*/tests/qemu-iotests"))
        _fetch()
    raise RuntimeError(f"no iotests in the source package of {PACKAGE}")


def _fetch() -> None:
    sources = CACHE / "apt" / "sources"
    for folder in (sources, CACHE / "apt/lists/partial", CACHE / "apt/archives/partial"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in _source_entries():
        (sources / name).write_text(text)
    options = {
        "Dir::Etc::SourceList": sources / "none.list",
        "Dir::Etc::SourceParts": sources,
        "Dir::State::Lists": CACHE / "apt/lists",
        "Dir::Cache": CACHE / "apt",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "--quiet", *(f"-o{name}={value}" for name, value in options.items())]
    _run([*apt, "update"])
    _run([*apt, "source", "--download-only", PACKAGE])
    (archive,) = CACHE.glob(f"{PACKAGE}_*.orig.tar.*")
    _run(["tar", "--extract", f"--file={archive}", "--no-same-owner", "--wildcards", *_PARTS])


def _source_entries() -> list[tuple[str, str]]:
    """Return this system's package sources as sources of source packages."""
    found = []
    for path in sorted(_SYSTEM.glob("sources.list.d/*.sources")):
        text = path.read_text()
        found.append((path.name, re.sub(r"(?m)^Types:.*$", "Types: deb-src", text)))
    for path in (_SYSTEM / "sources.list", *sorted(_SYSTEM.glob("sources.list.d/*.list"))):
        if path.is_file():
            text = path.read_text()
            found.append((path.name, re.sub(r"(?m)^deb(?:-src)?\b", "deb-src", text)))
    (CACHE / "apt/sources/none.list").unlink(missing_ok=True)
    return [(name, text) for name, text in found if "debian" in text or "ubuntu" in text]


def _run(words: list[str]) -> None:
    done = subprocess.run(
        words,
        cwd=CACHE,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()[-500:]}")
