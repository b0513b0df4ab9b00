# SPDX-License-Identifier: Apache-2.0
"""What qemu-img says of a hostile image is judged, also if the image made it say that."""

import pytest

from acstor_common import errors
from acstor_glance import sandbox
from acstor_glance.prepare import conversion


@pytest.fixture
def info_of(tmp_path, monkeypatch):
    """Return what judges an image of which qemu-img says something."""

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
def test_what_cannot_be_read_is_refused(info_of, said):
    with pytest.raises(errors.NotRaw, match="returned no valid JSON"):
        info_of(said)


def test_file_that_is_named_anywhere_is_found(info_of):
    extents = '[{"filename": "/image"}, {"deeper": [{"filename": "/etc/shadow"}]}]'
    with pytest.raises(errors.NotRaw, match="backing file"):
        info_of(f'{{"virtual-size": 1, "data": {{"extents": {extents}}}}}')
    info_of('{"virtual-size": 1, "filename": "/image"}')


def test_what_is_deep_is_looked_through():
    deep = [{"filename": "/etc/shadow"}]
    for _ in range(5000):
        deep = [deep]
    assert list(conversion._file_names(deep)) == ["/etc/shadow"]
