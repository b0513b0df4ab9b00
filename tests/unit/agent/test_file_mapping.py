# SPDX-License-Identifier: Apache-2.0
import errno
import os
import pathlib

import pytest

from acstor_agent.images.maps import file_mapping


def maps_of(path: pathlib.Path) -> int:
    return pathlib.Path("/proc/self/maps").read_text().count(str(path))


def test_mapping_needs_no_descriptor_and_lives_until_its_last_slice(tmp_path):
    path, data = tmp_path / "file", os.urandom(100_000)
    path.write_bytes(data)
    before = len(os.listdir("/proc/self/fd"))
    with path.open("rb") as file:
        view = file_mapping.read_only(file.fileno(), len(data))
    assert (len(os.listdir("/proc/self/fd")), view.readonly) == (before, True)
    assert view == data
    path.unlink()
    part = view[50_000:]
    del view
    assert part == data[50_000:]
    assert maps_of(path) == 1
    del part
    assert maps_of(path) == 0


def test_failed_mapping_raises_os_error_with_errno():
    with pytest.raises(OSError) as caught:
        file_mapping.read_only(-1, 10)
    assert caught.value.errno == errno.EBADF
