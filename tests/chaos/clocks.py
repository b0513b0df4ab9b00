# SPDX-License-Identifier: Apache-2.0
"""A wall clock for one host, which can be set while its agent runs.

The clock of this machine is never set.  A library that is loaded before all others
(``wall_clock.c``) adds the number in a file to the time of day; monotonic clocks and all waits are
the kernel's.  File timestamps still follow the kernel's clock.

Not libfaketime: with its 0.9.10 every ``time.sleep()`` of Python 3.11 fails with EINVAL.
"""

import mmap
import pathlib
import struct

from tests.lab import runs

SOURCE = pathlib.Path(__file__).with_name("wall_clock.c")
_OFF_NS = struct.Struct("=q")


def build(folder: pathlib.Path) -> pathlib.Path:
    """Compile the library, and return it.

    :raises errors.Unusable: there is no compiler
    """
    library = folder / "wall_clock.so"
    runs.tool(["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"])
    return library


class WallClock:
    """The clock of a host, right at first.

    :param path: of its own file
    :param library: made by :func:`build`
    """

    def __init__(self, path: pathlib.Path, library: pathlib.Path) -> None:
        path.write_bytes(_OFF_NS.pack(0))
        self.environment = {"LD_PRELOAD": str(library), "ACSTOR_CHAOS_CLOCK": str(path)}
        """Of processes that use this clock."""
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _OFF_NS.size)

    def set_off(self, seconds: float) -> None:
        """Set it ahead of the right time, or behind if ``seconds`` is negative."""
        self._page[:] = _OFF_NS.pack(int(seconds * 1e9))
