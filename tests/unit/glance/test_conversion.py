# SPDX-License-Identifier: Apache-2.0
"""Inspection of qemu-img's output for a hostile image, which may have chosen the output."""

import pytest

from acstor_common import errors
from acstor_glance import sandbox
from acstor_glance.prepare import conversion


@pytest.fixture
def info_of(tmp_path, monkeypatch):
    """Return a function that inspects an image with a given output of qemu-img."""

    def judge(text):
        monkeypatch.setattr(
            conversion._Job, "_run", lambda self, words, said, *bounds: said.write(text.encode())
        )
        with (tmp_path / "image").open("w+b") as stored, (tmp_path / "made").open("w+b") as made:
            isolation = sandbox.Sandbox.BUBBLEWRAP
            limits = conversion.ConversionLimits()
            job = conversion._Job("image x", "vmdk", stored, made, isolation, limits)
            conversion._check_info("image x", job.info(), job.image)

    return judge


@pytest.mark.parametrize("said", ["", "{", "5", "null", "[5]", "[" * 100_000, '{"a":' * 50_000])
def test_unreadable_output_of_qemu_img_is_refused(info_of, said):
    with pytest.raises(errors.NotRaw, match="returned no valid JSON"):
        info_of(said)


def test_file_name_at_any_level_is_found(info_of):
    extents = '[{"filename": "/image"}, {"deeper": [{"filename": "/etc/shadow"}]}]'
    with pytest.raises(errors.NotRaw, match="backing file"):
        info_of(f'{{"virtual-size": 1, "data": {{"extents": {extents}}}}}')
    info_of('{"virtual-size": 1, "filename": "/image"}')


def test_deeply_nested_output_is_searched():
    deep = [{"filename": "/etc/shadow"}]
    for _ in range(5000):
        deep = [deep]
    assert list(conversion._file_names(deep)) == ["/etc/shadow"]
