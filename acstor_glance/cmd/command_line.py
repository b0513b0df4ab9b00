# SPDX-License-Identifier: Apache-2.0
"""Arguments of commands that make a file from an image."""

import argparse
import contextlib
import pathlib
from collections.abc import Iterator
from typing import IO

from acstor_common import errors


def add_files(parser: argparse.ArgumentParser, metavar: str, ending: str) -> None:
    """Add the arguments for the image and the output file."""
    what = "file of the image, as Glance has it"
    parser.add_argument("image", metavar="IMAGE", type=pathlib.Path, help=what)
    parser.add_argument(
        *("-o", "--output"),
        metavar=metavar,
        type=pathlib.Path,
        help=f"file to write; by default IMAGE with the ending {ending}",
    )


@contextlib.contextmanager
def readable(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Yield a file that is open for reading; raises errors.Unusable."""
    try:
        file = path.open("rb")
    except OSError as exc:
        raise errors.Unusable(str(path), exc.strerror or str(exc)) from exc
    with file:
        yield file
