# SPDX-License-Identifier: Apache-2.0
import errno
import os
import pathlib

import pytest

from acstor_agent.images.maps import file_mapping


def maps_of(path: pathlib.Path) -> int:
    return pathlib.Path("/proc/self/maps").read_text().count(str(path))


def test_file_is_mapped_without_a_descriptor_until_the_last_part_of_it_is_gone(tmp_path):
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


def test_what_cannot_be_mapped_says_why():
    with pytest.raises(OSError) as caught:
        file_mapping.read_only(-1, 10)
    assert caught.value.errno == errno.EBADF
