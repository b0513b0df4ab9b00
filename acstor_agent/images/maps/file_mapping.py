# SPDX-License-Identifier: Apache-2.0
"""Maps files into memory without keeping a descriptor for each, as Python's ``mmap`` does."""

import ctypes
import mmap
import os
import weakref

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def read_only(fd: int, length: int) -> memoryview:
    """Return the first bytes of a file, mapped while the view or a part of it exists.

    :param length: at least 1, and at most the length of the file
    :raises OSError: the file cannot be mapped
    """
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapped = (ctypes.c_ubyte * length).from_address(address)
    weakref.finalize(mapped, _libc.munmap, address, length).atexit = False
    return memoryview(mapped).cast("B").toreadonly()
