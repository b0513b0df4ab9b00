# SPDX-License-Identifier: Apache-2.0
"""A guest's interfaces: its shell on the serial console, and QEMU's monitor (QMP).

Both are unix sockets of QEMU.  A connected client must read all the time, because QEMU stops a
guest that writes to a full console.
"""

import contextlib
import json
import os
import pathlib
import re
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any

from acstor_common import errors

MONITOR_DEADLINE_S = 30.0
_PROMPT = re.compile(r"(?P<prompt>login: |# )$")


@contextlib.contextmanager
def connected(path: pathlib.Path) -> Iterator[socket.socket]:
    """Connect to a unix socket, also with a long path.

    :raises errors.Unusable: nothing listens there, or no answer came in the block's time
    """
    folder = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as link:
            # A socket address holds 107 bytes; the path by an open folder's descriptor is short.
            link.connect(f"/proc/self/fd/{folder}/{path.name}")
            yield link
    except OSError as failure:
        raise errors.Unusable(str(path), str(failure)) from failure
    finally:
        os.close(folder)


def monitor(path: pathlib.Path, command: str) -> Any:
    """Send a command without arguments to QEMU's monitor; return its answer.

    :raises errors.Unusable: it refused, or disconnected
    """
    with connected(path) as link, link.makefile("rw") as lines:
        link.settimeout(MONITOR_DEADLINE_S)
        answer = None
        for word in ("qmp_capabilities", command):
            lines.write(json.dumps({"execute": word}) + "\n")
            lines.flush()
            answer = _answer(path, lines)
    return answer


def _answer(path: pathlib.Path, lines: Any) -> Any:
    """Return the next answer; skip greetings and events."""
    for line in lines:
        message = json.loads(line)
        if "error" in message:
            raise errors.Unusable(str(path), str(message["error"]))
        if "return" in message:
            return message["return"]
    raise errors.Unusable(str(path), "QEMU's monitor hung up")


class Console:
    """The serial console at ``link``; ``deadline_s`` limits the sum of all waits."""

    def __init__(self, link: socket.socket, deadline_s: float) -> None:
        self._link = link
        self._end = time.monotonic() + deadline_s

    def ask(self, text: str, pattern: re.Pattern[str]) -> re.Match[str]:
        """Type ``text`` and read until ``pattern`` matches the output after it.

        :raises errors.Unusable: it did not in time; has the output
        """
        self._link.sendall(text.encode())
        seen = ""
        while (found := pattern.search(seen)) is None:
            self._link.settimeout(max(0.01, self._end - time.monotonic()))
            try:
                data = self._link.recv(65536)
            except TimeoutError:
                data = b""
            if not data:
                raise errors.Unusable("guest's console", f"after {text!r} came {seen[-1000:]!r}")
            seen += data.decode(errors="replace").replace("\r", "")
        return found

    def log_in(self) -> None:
        """Log in as root."""
        if self.ask("\n", _PROMPT)["prompt"] == "login: ":
            self.ask("root\n", re.compile(r"# $"))

    def run(self, command: str) -> str:
        """Run one shell line and return its output.

        :raises errors.Unusable: it failed, or took too long
        """
        nonce = secrets.token_hex(4)
        # Split the words, so the typed line's echo does not match as the answer.
        typed = f"echo BE''GIN{nonce}; {command}; echo EN''D{nonce}=$?\n"
        pattern = rf"BEGIN{nonce}\n(?P<output>.*?)END{nonce}=(?P<status>[0-9]+)\n"
        answer = self.ask(typed, re.compile(pattern, re.DOTALL))
        if answer["status"] != "0":
            raise errors.Unusable(f"in the guest: {command}", answer["output"][-1000:])
        return answer["output"]
