# SPDX-License-Identifier: Apache-2.0
"""Two processes of the tests never get the same port, even if no service listens on it yet."""

import contextlib
import json
import subprocess
import sys

CHOOSE = """
import json
from tests.lab import local
local._PORTS = iter(range(30_000, 30_200))
print(json.dumps([local.unused_port() for _ in range(20)]), flush=True)
input()
"""


def test_processes_that_run_at_a_time_get_different_ports():
    argv = [sys.executable, "-c", CHOOSE]
    with contextlib.ExitStack() as stack:
        chosen = []
        for _ in range(2):
            process = stack.enter_context(
                subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.communicate, "\n")
            chosen += json.loads(process.stdout.readline())
    assert len(set(chosen)) == 40
