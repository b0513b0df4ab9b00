# SPDX-License-Identifier: Apache-2.0
"""A file as a buffer that stays on disk: a chunk map of 1 TiB is 512 MiB long."""

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def map_file(file: IO[bytes]) -> Iterator[memoryview]:
    """Yield all bytes of an open file; nothing may look at them after the block."""
    file.flush()
    if not os.fstat(file.fileno()).st_size:
        yield memoryview(b"")  # nothing cannot be mapped
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        # Released here even if a traceback still holds what was made of it.
        with memoryview(mapping) as view:
            yield view
