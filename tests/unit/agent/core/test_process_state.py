# SPDX-License-Identifier: Apache-2.0
import os
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies

from acstor_agent.core.mount import process_state

ALIVE = process_state.Thread("S", 0x400000, 900, 0)
KILLED = ALIVE._replace(state="D", pending=1 << 8)
EXITING = ALIVE._replace(state="D", flags=0x40040C)
DUMPING = ALIVE._replace(state="D", flags=0x400600)
ENDED = ALIVE._replace(state="Z")
WORKER = ALIVE._replace(flags=0x400010)


def test_stat_of_this_process_is_parsed():
    thread = process_state.thread_of(pathlib.Path("/proc/self/stat").read_text())
    assert thread.state == "R" and not thread.is_ending and not thread.is_worker
    since_boot_s = thread.started / os.sysconf("SC_CLK_TCK")
    assert 0 < since_boot_s <= float(pathlib.Path("/proc/uptime").read_text().split()[0])


@pytest.mark.parametrize("name", ["a) D 1 (b", "a\nb", ") ) )", ""])
def test_process_name_may_contain_any_character(name):
    own = pathlib.Path("/proc/self/stat").read_text()
    number, rest = own.split(" ")[0], own.rpartition(")")[2]
    assert process_state.thread_of(f"{number} ({name}){rest}") == process_state.thread_of(own)


@pytest.mark.parametrize("text", ["", "7 (a) S 1", "nonsense"])
def test_invalid_stat_text_is_refused(text):
    with pytest.raises(ValueError, match="is not a line of /proc"):
        process_state.thread_of(text)


@pytest.mark.parametrize(
    ("threads", "is_dying"),
    [
        ([ALIVE], False),
        ([KILLED], True),
        ([EXITING], True),
        ([ENDED, KILLED], True),
        ([DUMPING, KILLED], True),
        ([KILLED, WORKER], True),
        ([ENDED, ALIVE], False),  # only the first thread has ended
        ([ALIVE, KILLED], False),  # one thread ends for an execve
        ([WORKER], False),
        ([], False),
    ],
)
def test_process_is_dying_if_all_its_threads_are_ending(threads, is_dying):
    assert process_state.is_dying(threads) is is_dying


def holder(pid, tag, is_dying):
    return process_state.FileHolder(pid, tag, pid, (3,), is_dying)


HOLDERS = strategies.lists(
    strategies.builds(
        holder, strategies.integers(1, 6), strategies.integers(1, 3), strategies.booleans()
    ),
    max_size=6,
    unique_by=lambda one: one.pid,
)


@given(strategies.integers(0, 3), HOLDERS, strategies.sets(strategies.integers(1, 6)))
def test_request_never_ends_while_a_living_process_may_use_it(tag, holders, together):
    """Processes in ``together`` share an opening; the process that opened it may have gone."""

    def shares(one, other):
        return {one.pid, other.pid} <= together

    ends = process_state.may_end(tag, holders, shares)
    openers = [one for one in holders if one.tag == tag]
    for one in holders:
        may_use = one in openers or not openers
        may_use |= any(shares(one, opener) for opener in openers)
        assert not (ends and may_use and not one.is_dying)
    if holders and all(one.is_dying for one in holders):
        assert ends
