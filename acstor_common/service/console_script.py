# SPDX-License-Identifier: Apache-2.0
"""How an installed command begins: all of them are installed, whatever extras were asked for.

The rule: a command whose role is not installed says in one line which extra brings it; and each
says its version, that of the whole.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable
from collections.abc import Iterator

from acstor_common.service import version
from acstor_common.util import printable_text

MISUSE = 2
"""The exit status of a command that cannot be what was meant, as argparse's."""
NO_APPLICATION = 22
"""That of a process of uWSGI without its application: at any other it is started again."""


def entry_point(command: str, module: str, extra: str) -> Callable[[], int]:
    """Return what starts a command.

    :param module: where its ``main`` is; imported when the command starts
    :param extra: of the package ``acstor``, which brings what the module imports
    """

    def start() -> int:
        if sys.argv[1:] == ["--version"]:
            print(f"{command} {version.installed()}")
            return 0
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as e:
            if (e.name or "acstor_").startswith("acstor_"):
                raise  # it is not that something was not installed
            why = (
                f"needs acstor[{extra}], which is not installed here (there is no module {e.name})"
            )
            print(f"{command}: {why}", file=sys.stderr)
            return MISUSE
        return int(found.main() or 0)

    return start


def error_text(error: Exception) -> str:
    """Return an error as a command tells it: a file's name first, without the system's number.

    >>> error_text(FileNotFoundError(2, "No such file or directory", "ring.json"))
    'ring.json: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return printable_text.text(f"{error.filename}: {error.strerror}")
    return printable_text.text(str(error))


@contextlib.contextmanager
def exit_on_error(program: str, *faults: type[Exception]) -> Iterator[None]:
    """End the process with one line on standard error when one of the faults is raised.

    For what a WSGI server imports: it would print a trace.  The status is NO_APPLICATION.
    """
    try:
        yield
    except faults as e:
        print(f"{program}: {error_text(e)}", file=sys.stderr, flush=True)
        raise SystemExit(NO_APPLICATION) from e
