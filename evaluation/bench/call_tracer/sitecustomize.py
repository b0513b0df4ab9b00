# SPDX-License-Identifier: Apache-2.0
"""Traces the acstor calls of a process's event loop while a file exists.

Python imports this at start if the folder is in PYTHONPATH.  While ``on`` exists in the folder
ACSTOR_CALLS, each call is recorded; after its deletion, the process writes a file named by its
pid: a line for each call, with its time, file, first and last line, and name.
"""

import os
import pathlib
import sys
import time
import types
from typing import Any

_FOLDER = os.environ.get("ACSTOR_CALLS")


def _record() -> None:
    import trio

    folder = pathlib.Path(str(_FOLDER))
    run = trio.run
    calls: list[tuple[float, types.CodeType]] = []

    def note(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call" and "/acstor_" in frame.f_code.co_filename:
            calls.append((time.monotonic(), frame.f_code))

    class Switch(trio.abc.Instrument):
        is_on = False

        def before_io_wait(self, timeout: float) -> None:
            is_on = (folder / "on").exists()
            if is_on != self.is_on:
                self.is_on = is_on
                sys.setprofile(note if is_on else None)
                if not is_on:
                    text = "".join(map(_line, calls))
                    calls.clear()
                    (folder / f"{os.getpid()}.new").write_text(text)
                    (folder / f"{os.getpid()}.new").rename(folder / f"{os.getpid()}.calls")

    def traced(*arguments: Any, **named: Any) -> Any:
        named["instruments"] = [*named.get("instruments", ()), Switch()]
        return run(*arguments, **named)

    trio.run = traced


def _line(call: tuple[float, types.CodeType]) -> str:
    at, code = call
    last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
    name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
    return f"{at} {code.co_filename} {code.co_firstlineno} {last} {name}\n"


if _FOLDER:
    _record()
