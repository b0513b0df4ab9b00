# SPDX-License-Identifier: Apache-2.0
"""Log stream that loses lines rather than wait for its reader: guests wait for the daemon."""

import contextlib
import io
import logging
import os
import select
from typing import IO

PATIENCE_MS = 20  # for a slow reader; none after a lost line
LOST = "({} log lines lost: nobody read the log, or its disk was full)\n"


class LossyStream(io.TextIOBase):
    """Writes lines to the descriptor of another stream while it takes them."""

    def __init__(self, inner: IO[str]) -> None:
        super().__init__()
        self._inner, self._lost = inner, 0

    def write(self, line: str) -> int:
        """Write a line, or count it as lost."""
        lost = LOST.format(self._lost) if self._lost else ""
        is_written = self._write((lost + line).encode(errors="backslashreplace"))
        self._lost = 0 if is_written else self._lost + 1
        return len(line)

    def _write(self, data: bytes) -> bool:
        patience_ms = 0 if self._lost else PATIENCE_MS
        try:
            fd = self._inner.fileno()
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            while data and poll.poll(patience_ms):  # PIPE_BUF bytes fit then
                data = data[os.write(fd, data[: select.PIPE_BUF]) :]
        except (OSError, ValueError):  # closed by its reader or by us, or a full disk
            return False
        return not data


def install() -> None:
    """Replace the streams of all log handlers of this process; files stay."""
    for handler in logging.getLogger().handlers:
        is_file = isinstance(handler, logging.FileHandler)
        if isinstance(handler, logging.StreamHandler) and not is_file:
            with contextlib.suppress(OSError):  # a stream in memory has no descriptor
                handler.stream.fileno()
                handler.setStream(LossyStream(handler.stream))
