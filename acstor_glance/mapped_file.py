# SPDX-License-Identifier: Apache-2.0
"""Maps a file into memory, because the chunk map of a 1 TiB image has 512 MiB."""

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def map_file(file: IO[bytes]) -> Iterator[memoryview]:
    """Yield the bytes of an open file as a view that is valid inside the block only."""
    file.flush()
    if not os.fstat(file.fileno()).st_size:
        yield memoryview(b"")  # mmap refuses empty files
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        # Released here even if a traceback still holds a slice of it.
        with memoryview(mapping) as view:
            yield view
