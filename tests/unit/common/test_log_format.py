# SPDX-License-Identifier: Apache-2.0
"""Log lines as oslo.log writes them in a service of acstor."""

import subprocess
import sys

SERVICE = r"""
import logging, sys
from oslo_config import cfg
from acstor_common.service import conf
from acstor_common import errors

made = cfg.ConfigOpts()
conf.load(made, ["--config-file", "/dev/null"], "acstor-test", conf.register_opts, [])
LOG = logging.getLogger("acstor")
try:
    raise errors.NotEnrolled("no table")
except errors.NotEnrolled as e:
    LOG.warning("not enrolled: %s", e)
    LOG.warning("not enrolled, and no word why")
try:
    raise ExceptionGroup("Exceptions from Trio nursery", [ValueError("x")])
except ExceptionGroup:
    LOG.error("a part failed")
LOG.warning("name %s", "a\n2026-01-01 ERROR forged\x1b]52;c;cm0=\x07")
try:
    raise ValueError("in a trace \x1b[2J")
except ValueError:
    LOG.exception("unexpected")
"""


def test_log_lines_have_no_repeated_text_and_no_control_characters():
    done = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, check=True)
    lines = (done.stdout + done.stderr).decode().splitlines()
    assert lines[0].endswith("] not enrolled: no table")
    assert lines[1].endswith("no word why: acstor_common.errors.NotEnrolled: no table")
    assert lines[2].endswith("] a part failed")
    assert lines[3].endswith("] name a?2026-01-01 ERROR forged?]52;c;cm0=?")
    assert "Traceback" in "".join(lines[4:]) and "in a trace ?[2J" in "".join(lines[4:])
    assert all(line.isprintable() for line in lines)
