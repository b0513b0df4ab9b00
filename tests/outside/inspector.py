# SPDX-License-Identifier: Apache-2.0
"""oslo.utils' format inspector tests, with acstor's inspection of each image.

The installed oslo.utils has the tests.  Their further dependencies are installed into ``.cache``.
"""

import contextlib
import hashlib
import importlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from unittest import mock

from oslo_utils.imageutils import format_inspector

from tests.outside import glance_inspection
from tests.outside import qemu_source

MODULE = "oslo_utils.tests.imageutils.test_format_inspector"
NEEDS = ("ddt==1.7.2", "oslotest==6.1.1")
_INSTALL_S = 300
_MAX_BYTES = 2 << 20  # of data that a test feeds to an inspector without a file


class Result(NamedTuple):
    """The result of the tests.

    :param images: inspected images
    :param refused: number of pairs of image and disk format that Glance refuses
    :param milder: the pairs that acstor accepts nevertheless
    """

    tests: int
    skipped: int
    failures: list[str]
    images: int
    refused: int
    milder: list[str]


class _Seen:
    """Judges each image that an inspector reads, once."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._known: set[bytes] = set()
        self._heads: dict[int, tuple[Any, bytearray]] = {}
        self._is_judging = False
        self.images, self.refused, self.milder = 0, 0, list[str]()

    def add_file(self, source: Any) -> None:
        """Judge an open file that a wrapper is about to read."""
        name = getattr(source, "name", None)
        if self._is_judging or not isinstance(name, str) or not pathlib.Path(name).is_file():
            return
        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha1").digest()
        self._judge(digest, pathlib.Path(name))

    def add_chunk(self, inspector: Any, chunk: bytes) -> None:
        """Collect the data that a test feeds to an inspector."""
        if not self._is_judging:
            _, head = self._heads.setdefault(id(inspector), (inspector, bytearray()))
            head += chunk[: _MAX_BYTES - len(head)]

    def judge_chunks(self) -> None:
        """Judge the collected data."""
        for _, head in self._heads.values():
            path = self._folder / "fed"
            path.write_bytes(head)
            self._judge(hashlib.sha1(head).digest(), path)
        self._heads.clear()

    def _judge(self, digest: bytes, path: pathlib.Path) -> None:
        if digest in self._known:
            return
        self._known.add(digest)
        self._is_judging = True
        try:
            milder, refused = glance_inspection.find_milder(path)
        finally:
            self._is_judging = False
        self.images += 1
        self.refused += refused
        self.milder += [f"acstor accepts {path.name} as {name}" for name in milder]


def run_tests() -> Result:
    """Run oslo.utils' tests."""
    _install()
    with tempfile.TemporaryDirectory(prefix="acstor-inspector-") as work:
        seen = _Seen(pathlib.Path(work))
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(MODULE))
        outcome = unittest.TestResult()
        with _watched(seen), contextlib.redirect_stderr(io.StringIO()):
            for test in _each(suite):
                _run_test(test, outcome)
                seen.judge_chunks()
    failures = [
        f"{test}: {why.strip().rpartition(chr(10))[2]}"
        for test, why in (*outcome.failures, *outcome.errors)
    ]
    return Result(
        outcome.testsRun, len(outcome.skipped), failures, seen.images, seen.refused, seen.milder
    )


def _run_test(test: Any, outcome: unittest.TestResult) -> None:
    """Run a test; repeat it on failure: a busy machine cannot time LUKS."""
    trial = unittest.TestResult()
    test.run(trial)
    if trial.wasSuccessful() and not trial.skipped:
        outcome.testsRun += 1
        return
    test.run(outcome)


@contextlib.contextmanager
def _watched(seen: _Seen) -> Iterator[None]:
    """Report all data that inspectors read to ``seen``."""
    begin = format_inspector.InspectWrapper.__init__
    feed = format_inspector.FileInspector.eat_chunk

    def begin_seen(self: Any, source: Any, *words: Any, **options: Any) -> None:
        seen.add_file(source)
        begin(self, source, *words, **options)

    def feed_seen(self: Any, chunk: bytes) -> None:
        seen.add_chunk(self, chunk)
        feed(self, chunk)

    with (
        mock.patch.object(format_inspector.InspectWrapper, "__init__", begin_seen),
        mock.patch.object(format_inspector.FileInspector, "eat_chunk", feed_seen),
    ):
        yield


def _each(suite: Any) -> Iterator[Any]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _each(test)
        else:
            yield test


def _install() -> None:
    folder = qemu_source.CACHE / "python"
    if not (folder / "oslotest").is_dir():
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *NEEDS]
        subprocess.run(words, check=True, timeout=_INSTALL_S, cwd=folder.parent)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # after all installed packages
