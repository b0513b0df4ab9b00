# SPDX-License-Identifier: Apache-2.0
"""Output of ``acstor-agent-ctl``; its requests to an agent are in tests/functional."""

import json
import socket

import pytest

from acstor_agent.cmd import ctl
from acstor_agent.cmd import ctl_tables
from acstor_common import errors
from acstor_common.wire import control_wire

END_S = 1_800_000_000
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        ({"certificate_not_after_s": None, "enrolment": None}, "no certificate"),
        (
            {
                "certificate_not_after_s": END_S,
                "enrolment": {"error": "", "failures": 0, "clock_offset_s": 0.2, "fingerprint": ""},
            },
            f"certificate until {ctl_tables._time(END_S)}",
        ),
        (
            {
                "certificate_not_after_s": None,
                "enrolment": {
                    "error": "Keystone is away",
                    "failures": 3,
                    "clock_offset_s": -86400.0,
                    "fingerprint": "ab" * 32,
                },
            },
            f"no certificate; Keystone is away; KEY is {'ab' * 32}; the clock was 86400 s behind",
        ),
    ],
)
def test_status_shows_the_certificate_and_enrolment_faults(identity, shown):
    assert ctl_tables._identity(identity) == shown


TABLE = """{"version": 1, "epoch": 3, "hosts": [
  {"host": "compute1", "address": "192.0.2.1:7201", "vnodes": 100},
  {"host": "compute2", "address": "192.0.2.2:7201", "vnodes": 100}]}
"""


def test_multi_line_table_is_sent_as_one_line(tmp_path):
    file = tmp_path / "ring.json"
    file.write_text(TABLE)
    request = ctl._parser().parse_args(["set-ring", str(file)])
    line = control_wire.encode(request.make(request))
    assert line.count(b"\n") == 1
    assert json.loads(bytes(control_wire.decode_request(line).ring)) == json.loads(TABLE)


@pytest.mark.parametrize("text", ["", '{"version": 1, "epoch": 3, "hosts": [', '{"version": 9}'])
def test_invalid_table_file_is_reported_without_a_request(tmp_path, text):
    file = tmp_path / "ring.json"
    file.write_text(text)
    request = ctl._parser().parse_args(["set-ring", str(file)])
    with pytest.raises(errors.RingFormatError, match=r"ring\.json"):
        request.make(request)


@pytest.mark.parametrize(("given", "deadline_s"), [([], 0.0), (["--deadline", "2h"], 7200.0)])
def test_hydrate_is_requested_with_and_without_a_deadline(given, deadline_s):
    asked = ctl._parser().parse_args(["hydrate", IMAGE, *given])
    expected = control_wire.SetFillMode(IMAGE, control_wire.FillMode.URGENT, deadline_s)
    assert asked.make(asked) == expected


@pytest.mark.parametrize("text", ["", "0", "-5s", "1w", "nan", "1e3", "400d", "99999999999"])
def test_invalid_deadline_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        ctl._parser().parse_args(["hydrate", IMAGE, f"--deadline={text}"])
    assert "not a time up to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("due_in_s", "is_late", "shown"),
    [
        (None, None, ""),
        (90.4, False, ", due in 90 s"),
        (9.0, True, ", due in 9 s, will be late"),
        (-5.0, True, ", was due 5 s ago"),
    ],
)
def test_deadline_of_an_image_is_shown(due_in_s, is_late, shown):
    assert ctl_tables._due(due_in_s, is_late) == shown


def test_image_without_a_deadline_is_shown():
    reported = {
        "state": "filling",
        "why": "",
        "cached_share": 0.5,
        "remaining_s": None,
        "is_pinned": False,
        "due_in_s": None,
        "is_late": None,
    }
    assert ctl_tables._fill(reported) == "filling 50 %"


@pytest.mark.parametrize("argv", [["--json", "status"], ["status", "--json"]])
def test_json_option_is_accepted_before_and_after_the_command(argv):
    assert ctl._parser().parse_args(argv).json
    assert not ctl._parser().parse_args(["status"]).json


def test_loop_lag_quantile_is_capped_by_the_maximum():
    shown = ctl_tables._loop_lag({"p99_s": 0.025, "longest_s": 0.0137})
    assert shown == "99 % within 13.7 ms, the longest 13.7 ms"


def test_table_aligns_numbers_right_and_words_left():
    table = ctl_tables.format_table(["Disk", "MiB"], [["a", "1,024.0"], ["longer", "-"]])
    assert "| a      | 1,024.0 |" in table
    assert "| longer |       - |" in table


def test_agent_that_hangs_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ctl, "SILENCE_S", 0.2)
    path = str(tmp_path / "control.sock")
    monkeypatch.setattr("sys.argv", ["acstor-agent-ctl", "--socket", path, "status"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hung:
        hung.bind(path)
        hung.listen()
        assert ctl.main() == 1
    said = capsys.readouterr().err
    assert "no answer within 0.2 s" in said and ctl.REMEDY in said
