# SPDX-License-Identifier: Apache-2.0
"""The C library's heap, which keeps most freed memory by itself."""

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Return freed memory to the kernel; takes milliseconds, call it in a thread."""
    with contextlib.suppress(AttributeError):  # of glibc only
        ctypes.CDLL(None).malloc_trim(0)
