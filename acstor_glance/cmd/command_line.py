# SPDX-License-Identifier: Apache-2.0
"""Arguments, progress bars, errors and exit statuses that the commands share."""

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Iterator
from typing import IO

import tqdm

from acstor_common import errors
from acstor_common.service import console_script

EXIT_FAILED, EXIT_STOPPED = 1, 130


def run_command(
    program: str, run: Callable[[], int], stopped: str, *faults: type[Exception]
) -> int:
    """Run a command, print acstor's errors and ``faults`` in a line; return the exit status."""
    expected: tuple[type[Exception], ...] = (errors.AcstorError, *faults)
    try:
        return run()
    except expected as exc:
        print(f"{program}: {console_script.error_text(exc)}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"{program}: {stopped}", file=sys.stderr)
        return EXIT_STOPPED


@contextlib.contextmanager
def byte_bar(name: str, size_bytes: int, *, is_shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, without an earlier run's bytes in the rate; yield its update."""
    with tqdm.tqdm(
        desc=name,
        total=size_bytes or None,
        unit="B",
        unit_scale=True,
        disable=not is_shown,
        leave=False,
    ) as bar:
        has_begun = False

        def update(done_bytes: int) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun, bar.initial = True, done_bytes
            bar.update(done_bytes - bar.n)

        yield update


def add_files(parser: argparse.ArgumentParser, metavar: str, ending: str) -> None:
    """Add the arguments for the image and the output file."""
    what = "file of the image, as stored in Glance"
    parser.add_argument("image", metavar="IMAGE", type=pathlib.Path, help=what)
    parser.add_argument(
        *("-o", "--output"),
        metavar=metavar,
        type=pathlib.Path,
        help=f"file to write; by default IMAGE with the ending {ending}",
    )


@contextlib.contextmanager
def open_readable(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Yield a file that is open for reading; raises errors.Unusable."""
    try:
        file = path.open("rb")
    except OSError as exc:
        raise errors.Unusable(str(path), exc.strerror or str(exc)) from exc
    with file:
        yield file
