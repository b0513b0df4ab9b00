# SPDX-License-Identifier: Apache-2.0
"""Fails a test that logs an unexpected warning (a practice of s3ql).

A test declares its log records of WARNING and above from ``acstor_*`` by markers with a regular
expression to search in the message::

    @pytest.mark.expect_log(r"slot 3 .* healed")   # must be logged at least once
    @pytest.mark.allow_log(r"did not answer")      # may be logged

It covers only this process; an agent in a process of its own has its own log.
"""

import gc
import logging
import pathlib
import re
import signal
from collections.abc import Generator
from collections.abc import Iterator

import hypothesis
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = sorted(path.parent.name for path in ROOT.glob("acstor_*/__init__.py"))
MARKERS = {
    "expect_log": "expect_log(regex): a warning or error that the test must log",
    "allow_log": "allow_log(regex): a warning or error that the test may log",
}
pytest_plugins = ["tests.lab.fixtures"]
LANES = (
    "openstack: a test that needs its services; tools/test.sh runs these beside the others",
    "nova: one of those that needs its compute hosts, too; they have a cloud of their own there",
    "nightly: a long test, or one of what others made; only tools/test.sh nightly runs these",
    "timed: a test with a bound in seconds that a busy machine exceeds; tools/test.sh runs it last",
    "packages: a test of Debian packages and containers; only tools/test.sh packages runs them",
)
COMPUTE = {"nova", "cluster", "compute_lab"}  # fixtures
HAS_PASSED = pytest.StashKey[bool]()

# The speed of inputs depends on the machine: the first run in a fresh checkout builds Unicode
# tables, and other processes may use the CPUs.
hypothesis.settings.register_profile(
    "acstor", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("acstor")

# A shell's background processes ignore SIGINT, and so would the tests' children.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    for line in (*MARKERS.values(), *LANES):
        config.addinivalue_line("markers", line)


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt the collected tests, which live until the end, from garbage collection."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)  # collections take 8 % of the unit tests' time otherwise
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if "openstack_lab" in names:
            item.add_marker("openstack")
            if names & COMPUTE:
                item.add_marker("nova")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[HAS_PASSED] = report.passed
    return report


class Recorder(logging.Handler):
    """Stores all records of WARNING and above, already formatted."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append((f"{record.levelname} {record.name}", record.getMessage()))


def complaints(
    messages: list[tuple[str, str]], expected: list[str], allowed: list[str]
) -> list[str]:
    """Return the unexpected ``messages``, and the expected patterns without a message."""
    texts = [text for _origin, text in messages]
    unexpected = [
        f"unexpected log: {origin}: {text}"
        for origin, text in messages
        if not any(re.search(pattern, text) for pattern in (*expected, *allowed))
    ]
    missing = [
        f"expected log did not come: {pattern}"
        for pattern in expected
        if not any(re.search(pattern, text) for text in texts)
    ]
    return unexpected + missing


@pytest.fixture(autouse=True)
def watched_log(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    recorder = Recorder()
    loggers = [logging.getLogger(room) for room in ROOMS]
    logging.disable(logging.NOTSET)  # an earlier command in this process may have disabled it
    for logger in loggers:
        logger.addHandler(recorder)
    yield recorder
    for logger in loggers:
        logger.removeHandler(recorder)
    patterns = {
        name: [pattern for mark in request.node.iter_markers(name) for pattern in mark.args]
        for name in MARKERS
    }
    wrong = complaints(recorder.messages, patterns["expect_log"], patterns["allow_log"])
    if not request.node.stash.get(HAS_PASSED, False):
        return  # skipped, or already failed
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
