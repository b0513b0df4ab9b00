# SPDX-License-Identifier: Apache-2.0
"""A test that logs a warning which nobody expected fails (a habit of s3ql).

WARNING and above from the rooms' loggers (``acstor_*``) is part
of what a test promises.  A test says which with a marker, a regular expression
that is searched in the message::

    @pytest.mark.expect_log(r"slot 3 .* healed")   # must be logged at least once
    @pytest.mark.allow_log(r"did not answer")      # may be logged

Only this process is watched; an agent in a process of its own has its own log.
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
    "packages: a test of Debian packages and containers; only tools/test.sh packages runs them",
)
COMPUTE = {"nova", "cluster", "compute_lab"}  # fixtures
HAS_PASSED = pytest.StashKey[bool]()

# How fast inputs come says more about the machine than about the code: the first run in a fresh
# checkout builds tables of Unicode, and others may use the processors too.
hypothesis.settings.register_profile(
    "acstor", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("acstor")

# What a shell starts in the background ignores SIGINT, and so would what tests end by it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    for line in (*MARKERS.values(), *LANES):
        config.addinivalue_line("markers", line)


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays until the end, so the garbage collector need not look at it."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)  # looks take 8 % of the unit tests' time else
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
    """Keeps every record of WARNING and above, formatted when it was made."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append((f"{record.levelname} {record.name}", record.getMessage()))


def complaints(
    messages: list[tuple[str, str]], expected: list[str], allowed: list[str]
) -> list[str]:
    """Say what is wrong with ``messages``: the unexpected ones, and the ones that did not come."""
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
    logging.disable(logging.NOTSET)  # a command that another test called may have disabled it
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
        return  # skipped, or failed for a reason that says more
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
