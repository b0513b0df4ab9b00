# SPDX-License-Identifier: Apache-2.0
"""Entry points of commands; pip installs all of them, whichever extras were selected."""

import contextlib
import gc
import importlib
import sys
import types
from collections.abc import Callable
from collections.abc import Iterator

from acstor_common.service import version
from acstor_common.util import printable_text

MISUSE = 2  # exit status for wrong usage, as argparse's
NO_APPLICATION = 22  # uWSGI's exit status for "no application": uWSGI does not restart the process


def entry_point(command: str, module: str, extra: str) -> Callable[[], int]:
    """Return a function that imports ``module``, which needs ``extra`` of acstor, and runs it."""

    def start() -> int:
        if sys.argv[1:] == ["--version"]:
            print(f"{command} {version.installed()}")
            return 0
        try:
            found = import_for_life(module)
        except ModuleNotFoundError as e:
            if (e.name or "acstor_").startswith("acstor_"):
                raise  # a defect, no missing dependency
            why = (
                f"needs acstor[{extra}], which is not installed here (there is no module {e.name})"
            )
            print(f"{command}: {why}", file=sys.stderr)
            return MISUSE
        return int(found.main() or 0)

    return start


def import_for_life(module: str) -> types.ModuleType:
    """Import a module for good; garbage collection skips it, so forked children share its pages."""
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def error_text(error: Exception) -> str:
    """Return an error for the terminal: file name first, without errno.

    >>> error_text(FileNotFoundError(2, "No such file or directory", "ring.json"))
    'ring.json: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return printable_text.text(f"{error.filename}: {error.strerror}")
    return printable_text.text(str(error))


@contextlib.contextmanager
def exit_on_error(program: str, *faults: type[Exception]) -> Iterator[None]:
    """Exit with one line on standard error, not a traceback, and NO_APPLICATION on ``faults``."""
    try:
        yield
    except faults as e:
        print(f"{program}: {error_text(e)}", file=sys.stderr, flush=True)
        raise SystemExit(NO_APPLICATION) from e
