# SPDX-License-Identifier: Apache-2.0
"""Random qcow2 images, valid and damaged: acstor serves QEMU's bytes or refuses them.

Three hundred run for each change, ten thousand each night.

"""

import collections
import pathlib
import random
import time

import pytest

from acstor_common import errors
from tests.fakes import qcow2_corpus
from tests.outside import fuzz
from tests.outside import judge
from tests.outside import overlays
from tests.outside.judge import Verdict

IMAGES, NIGHTLY_IMAGES, SEED = 300, 1000, 2026
LONGEST_S = 500

pytestmark = pytest.mark.skipif(
    not qcow2_corpus.HAS_TOOLS, reason="qemu-img and qemu-io are not installed"
)


def check_images(seed: int, count: int, kept: pathlib.Path) -> None:
    rows = list(fuzz.judge_images(seed, 0, count, time.monotonic() + LONGEST_S, kept))
    assert [row for row in rows if row.verdict.is_fault] == []
    verdicts = collections.Counter(row.verdict for row in rows)
    assert verdicts.total() == count
    assert verdicts[Verdict.EQUAL] > count / 3 and verdicts[Verdict.BOTH_REFUSE] > count / 20


def test_random_images_equal_those_of_qemu_or_are_refused(tmp_path: pathlib.Path) -> None:
    check_images(SEED, IMAGES, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_thousands_of_random_images_equal_those_of_qemu_or_are_refused(
    tmp_path: pathlib.Path, seed: int
) -> None:
    check_images(seed, NIGHTLY_IMAGES, tmp_path)


@pytest.fixture
def image(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "image.qcow2"
    qcow2_corpus.qemu_img("create", "-q", "-f", "qcow2", path, "1M")
    qcow2_corpus.qemu_io(path, ("write -P 1 0 64k", "write -P 2 300k 100k"))
    return path


def judged(image: pathlib.Path, prepare: judge.Prepare = judge.prepare_qcow2) -> judge.Row:
    return judge.judge_image("image", image, "qcow2", prepare)


def test_judge_detects_different_bytes(image: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """acstor prepares one image, and QEMU reads another."""
    assert judged(image).verdict is Verdict.EQUAL
    other = tmp_path / "other.qcow2"
    other.write_bytes(image.read_bytes())
    qcow2_corpus.qemu_io(other, ("write -P 3 300k 512",))
    wrong = judged(image, lambda _, *words: judge.prepare_qcow2(other, *words))
    assert (wrong.verdict, wrong.acstor) == (Verdict.DIFFERENT, "the CID of chunk 4")
    qcow2_corpus.qemu_img("resize", "-q", other, "2M")
    longer = judged(image, lambda _, *words: judge.prepare_qcow2(other, *words))
    assert longer.acstor == "a disk of 2097152 bytes, and QEMU's has 1048576"


def test_judge_detects_bytes_changed_after_preparation(image: pathlib.Path) -> None:
    def prepare(*words: object) -> pathlib.Path:
        stored = judge.prepare_qcow2(*words)  # type: ignore[arg-type]
        data = image.read_bytes()
        stored.unlink()
        stored.write_bytes(data.replace(b"\2" * 65536, b"\3" * 65536))
        return stored

    wrong = judged(image, prepare)
    assert wrong.verdict is Verdict.DIFFERENT and "as an agent reads it" in wrong.acstor


def test_judge_detects_an_image_that_only_acstor_accepts(
    image: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    good = tmp_path / "good.qcow2"
    good.write_bytes(image.read_bytes())
    data = bytearray(image.read_bytes())
    data[60:64] = b"\xff" * 4  # snapshots
    image.write_bytes(data)
    assert judged(image).verdict is Verdict.BOTH_REFUSE
    milder = judged(image, lambda _, *words: judge.prepare_qcow2(good, *words))
    assert milder.verdict is Verdict.MILDER and "Snapshot table too large" in milder.qemu


def test_judge_detects_a_valid_image_that_acstor_refuses(image: pathlib.Path) -> None:
    def refuse(*words: object) -> pathlib.Path:
        raise errors.NotRaw("image", "its tables are invalid")

    def fail(*words: object) -> pathlib.Path:
        raise KeyError(7)

    assert judged(image, refuse).verdict is Verdict.TOO_STRICT
    assert judged(image, fail) == ("image", "", "KeyError(7)", Verdict.BROKEN)


def test_judge_detects_a_difference_of_a_flattened_image(
    image: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert overlays.find_flatten_difference(image, tmp_path) == ""
    monkeypatch.setattr(overlays.changed_disks, "write", lambda path, parts: path.write_bytes(
        b"".join(parts).replace(b"\2" * 512, b"\4" * 512, 1)))  # fmt: skip
    assert "of the flat disk" in overlays.find_flatten_difference(image, tmp_path)


def test_damage_is_reproducible_by_seed_and_number() -> None:
    whole = bytes(range(256)) * 4096
    whole = b"QFI\xfb" + whole[4:]
    first = [fuzz.damage(random.Random(f"1/{n}"), whole) for n in range(20)]
    assert first == [fuzz.damage(random.Random(f"1/{n}"), whole) for n in range(20)]
    assert len(set(first)) > 15 and whole not in first
