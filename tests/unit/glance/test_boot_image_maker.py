# SPDX-License-Identifier: Apache-2.0
"""Boot images of recorded boots: better ones replace worse ones, and never contain wrong bytes."""

import contextlib
import hashlib
import random

import pytest

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire import trace_message
from acstor_glance.boot import boot_image_maker
from acstor_glance.boot import build_modes
from acstor_glance.boot import trace_changes
from acstor_glance.prepare import prehash
from acstor_glance.prepare import preparation_budget
from tests.fakes import glance_records
from tests.fakes import qcow2_bombs

CHUNK = 64 * geometry.KIB
EQUAL_TO_3 = 19
DATA = random.Random(1).randbytes(EQUAL_TO_3 * CHUNK)
DATA += DATA[3 * CHUNK : 4 * CHUNK] + bytes(4 * CHUNK)
OS_HASH = chunk_map.OsHash("sha512", hashlib.sha512(DATA).digest())
RECORDED = build_modes.BuildModes(builds=False, records=True)
IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
MAP_ID = "2b1d7c7e-9d0c-4f5e-8a56-0f4f1f5b7d22"
BOOT_IMAGE_ID = "2b1d7c7e-9d0c-4f5e-8a56-0f4f1f5b7d33"


class MemoryGlance:
    """The images of a Glance, with the operations that boot images need."""

    project_id = "the service's"

    def __init__(self, map_bytes: bytes) -> None:
        self.image = {
            "id": IMAGE_ID,
            "status": "active",
            "disk_format": "raw",
            "container_format": "bare",
            "size": len(DATA),
            "os_hash_algo": OS_HASH.algo,
            "os_hash_value": OS_HASH.value.hex(),
        }
        self.bytes = {IMAGE_ID: DATA, MAP_ID: map_bytes}
        self.artefacts = {artefacts.Kind.CHUNK_MAP: {"id": MAP_ID}}
        self.published: list[tuple[int, list[int]]] = []

    def list_project_artefacts(self, project):
        return [
            image_record.Image.from_record({"acstor_kind": kind.value, **artefact})
            for kind, artefact in self.artefacts.items()
        ]

    def read_or_none(self, image_id):
        is_known = image_id == IMAGE_ID
        return image_record.Image.from_record(self.image) if is_known else None

    def get_image(self, image_id):
        return self.read_or_none(image_id)

    def artefact_of(self, image, kind):
        found = self.artefacts.get(kind)
        return image_record.Image.from_record(found) if found else None

    def local_path(self, image, folders):
        return None

    @contextlib.contextmanager
    def open_image_data(self, image_id):
        data = self.bytes[image_id]
        yield (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))

    def set_properties(self, image_id, properties):
        self.image.update(properties)

    def publish_artefact(self, kind, image, file, revision, artefact_properties, image_properties):
        raw = file.read()
        head = boot_frames.check_boot_image([raw], "what was published")
        assert head.header.revision == revision
        assert head.header.binding.os_hash == OS_HASH
        self.published.append((revision, list(head.trace)))
        self.artefacts[kind] = {"id": BOOT_IMAGE_ID, **artefact_properties}
        self.image.update(image_properties)
        self.bytes[BOOT_IMAGE_ID] = raw


@pytest.fixture
def glance(tmp_path):
    image = tmp_path / "image"
    image.write_bytes(DATA)
    prehash.prehash(image, tmp_path / "map", IMAGE_ID, os_hash=OS_HASH)
    return MemoryGlance((tmp_path / "map").read_bytes())


@pytest.fixture
def made(tmp_path, glance, conf):
    return make(tmp_path, glance, conf)


def make(tmp_path, glance, conf, modes=RECORDED, **limits):
    (tmp_path / "state").mkdir()
    cost_limits = preparation_budget.CostLimits(**limits)
    return boot_image_maker.BootImageMaker(glance, conf, modes, cost_limits=cost_limits)


def boot(
    *trace: int, host: str = "h1", image_id: str = IMAGE_ID, chunks: int = 24, profile: str = ""
):
    return trace_message.BootTrace(
        host=host,
        image_id=image_id,
        size_bytes=chunks * CHUNK,
        chunk_bytes=CHUNK,
        trace=trace,
        profile=ids.profile_key_of(profile).hex(),
    )


def published_trace(glance):
    return boot_image.parse_head(glance.bytes[BOOT_IMAGE_ID], "what was published").profiled_trace


def test_boot_image_has_the_chunks_of_profiles_apart(glance, made):
    for host in ("h1", "h2", "h3", "h4"):
        made.add_trace(boot(5, 3, host=host))
        made.add_trace(boot(5, 3, 9, host=host, profile="db"))
        made.add_trace(boot(5, 3, 9, host=host, profile="db"))
    assert made.make_boot_image(IMAGE_ID)
    assert published_trace(glance) == ((5, 3), {ids.profile_key_of("db"): (9,)})
    assert not made.make_boot_image(IMAGE_ID)  # unchanged
    for host in ("h1", "h2"):
        made.add_trace(boot(5, 9, 7, 21, host=host, profile="web"))  # chunk 21 is zeros
    assert made.make_boot_image(IMAGE_ID)
    of_profiles = {ids.profile_key_of("db"): (9,), ids.profile_key_of("web"): (9, 7)}
    assert published_trace(glance) == ((5, 3), of_profiles)
    assert not made.make_boot_image(IMAGE_ID)


def test_repeated_data_does_not_make_the_boot_image_anew(glance, made):
    for host in ("h1", "h2"):
        made.add_trace(boot(5, 3, EQUAL_TO_3, host=host))
        made.add_trace(boot(5, EQUAL_TO_3, 9, host=host, profile="db"))
    assert made.make_boot_image(IMAGE_ID)
    assert published_trace(glance) == ((5, 3), {ids.profile_key_of("db"): (9,)})
    assert not made.make_boot_image(IMAGE_ID)


def test_few_chunks_of_a_new_profile_do_not_make_a_large_boot_image_anew():
    old = boot_image.ProfiledTrace(tuple(range(1000)))
    few, many = (tuple(range(2000, 2000 + count)) for count in (15, 16))
    for chunk_nos, is_worth in ((few, False), (many, True)):
        new = boot_image.ProfiledTrace(old.common, {ids.profile_key_of("db"): chunk_nos})
        assert trace_changes.is_worth_rebuilding(new, old) is is_worth


def test_one_recorded_boot_gives_a_first_boot_image_and_two_a_better_one(glance, made):
    assert made.add_trace(boot(5, 3, 21, 9)) == IMAGE_ID
    assert made.make_boot_image(IMAGE_ID)
    assert glance.published == [(1, [5, 3, 9])]  # chunk 21 is zeros
    assert glance.image["acstor_boot_state"] == "ready"
    assert glance.artefacts[artefacts.Kind.BOOT_IMAGE]["acstor_origin"] == "recorded"
    assert not made.make_boot_image(IMAGE_ID)
    made.add_trace(boot(5, 3, 9, 11, host="h2"))
    assert made.make_boot_image(IMAGE_ID)
    assert glance.published[-1] == (2, [5, 3, 9, 11])


def test_one_recorded_boot_does_not_replace_an_existing_boot_image(glance, made):
    made.add_trace(boot(5, 3))
    assert made.make_boot_image(IMAGE_ID)
    folder = made._traces._folder
    for path in folder.iterdir():
        path.unlink()
    made.add_trace(boot(7, 8, 9))
    assert not made.make_boot_image(IMAGE_ID)
    made.add_trace(boot(7, 8, 9, host="h2"))
    assert made.make_boot_image(IMAGE_ID)


def test_better_boot_image_replaces_it_with_a_higher_revision(glance, made):
    for host in ("h1", "h2"):
        made.add_trace(boot(5, 3, host=host))
    assert made.make_boot_image(IMAGE_ID)
    assert not made.make_boot_image(IMAGE_ID)  # unchanged
    for host in ("h3", "h4", "h5"):
        made.add_trace(boot(5, 3, 7, host=host))
    assert made.make_boot_image(IMAGE_ID)
    assert glance.published[-1] == (2, [5, 3, 7])


def test_chunks_of_few_boots_are_left_out(glance, made):
    for number in range(3):
        made.add_trace(boot(5, 3, 10 + number, host=f"h{number}"))
    made.make_boot_image(IMAGE_ID)
    assert glance.published[-1][1] == [5, 3]


def test_traces_of_another_size_or_of_unknown_images_are_ignored(glance, made):
    other = "00000000-0000-4000-8000-000000000001"
    for host in ("h1", "h2"):
        made.add_trace(boot(5, 3, host=host, chunks=25))
        made.add_trace(boot(5, 3, host=host, image_id=other))
    assert not made.make_boot_image(IMAGE_ID)
    assert not made.make_boot_image(ids.parse_image_id(other))
    assert glance.published == []


def test_unmapped_or_inactive_image_gets_no_boot_image(glance, made):
    for host in ("h1", "h2"):
        made.add_trace(boot(5, 3, host=host))
    kept = glance.artefacts.pop(artefacts.Kind.CHUNK_MAP)
    assert not made.make_boot_image(IMAGE_ID)
    glance.artefacts[artefacts.Kind.CHUNK_MAP] = kept
    glance.image["status"] = "deactivated"
    assert not made.make_boot_image(IMAGE_ID)


@pytest.mark.parametrize(
    ("said", "firmware"),
    [("uefi", "uefi"), ("bios", "bios"), ("", "bios"), ("UEFI?", "bios"), (7, "bios")],
)
def test_firmware_follows_the_property_or_the_default_of_nova(said, firmware):
    assert boot_image_maker.firmware_of(glance_records.image(hw_firmware_type=said)) == firmware


@pytest.mark.expect_log("no boot image of recorded boots: chunk 3")
def test_wrong_bytes_of_the_image_give_no_boot_image(glance, made):
    for host in ("h1", "h2"):
        made.add_trace(boot(5, 3, host=host))
    glance.bytes[IMAGE_ID] = (
        DATA[: 3 * CHUNK] + bytes([DATA[3 * CHUNK] ^ 1]) + DATA[3 * CHUNK + 1 :]
    )
    assert not made.make_boot_image(IMAGE_ID)
    assert glance.published == []


def test_damaged_boot_image_in_glance_is_replaced(glance, made):
    glance.artefacts[artefacts.Kind.BOOT_IMAGE] = {"id": BOOT_IMAGE_ID}
    glance.bytes[BOOT_IMAGE_ID] = b"damaged" * 1000
    for host in ("h1", "h2"):
        made.add_trace(boot(5, 3, host=host))
    assert made.make_boot_image(IMAGE_ID)
    assert glance.published == [(1, [5, 3])]


def test_killed_process_keeps_recorded_images_and_leaves_no_files(glance, made, conf, tmp_path):
    for host in ("h1", "h2"):
        made.add_trace(boot(5, 3, host=host))
    folder = tmp_path / "state/boot"
    (folder / f"{IMAGE_ID}.acboot").write_bytes(b"half")
    (folder / f".incoming-{IMAGE_ID}.acboot-x").write_bytes(b"half")
    again = boot_image_maker.BootImageMaker(glance, conf, RECORDED)
    assert again.list_recorded() == [IMAGE_ID]
    assert again.make_boot_image(IMAGE_ID)
    assert glance.published == [(1, [5, 3])]
    assert list(folder.iterdir()) == []


@pytest.fixture
def slow(tmp_path, glance):
    """Let the image have slowly decoding clusters, and a chunk map."""
    data = qcow2_bombs.slow(4 << 21)
    patient = preparation_budget.CostLimits(spare_cpu_s=100.0)
    image = tmp_path / "slow"
    image.write_bytes(data)
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(data).digest())
    prehash.prehash(
        *(image, tmp_path / "map", IMAGE_ID),
        disk_format=layout.DiskFormat.QCOW2,
        os_hash=os_hash,
        budget=preparation_budget.PreparationBudget("image", limits=patient),
    )
    glance.bytes = {IMAGE_ID: data, MAP_ID: (tmp_path / "map").read_bytes()}
    glance.image |= {
        "disk_format": "qcow2",
        "size": len(data),
        "os_hash_value": os_hash.value.hex(),
        "acstor_state": "ready",
        "acstor_state_of": IMAGE_ID,
    }


@pytest.mark.expect_log("its clusters decode too slowly")
def test_boot_image_of_recorded_boots_stays_within_the_budget(tmp_path, glance, conf, slow):
    made = make(tmp_path, glance, conf, spare_cpu_s=0.0)
    made.add_trace(boot(0, 32, 64, 96, chunks=128))
    assert not made.make_boot_image(IMAGE_ID)
    assert glance.published == []


def test_build_over_its_budget_fails_for_good(glance, tmp_path, conf, slow):
    modes = build_modes.BuildModes(builds=True, records=False)
    builds = make(tmp_path, glance, conf, modes, spare_cpu_s=0.0)
    assert not builds.make_boot_image(IMAGE_ID)
    assert glance.image["acstor_boot_state"] == "failed"
    assert "decode too slowly" in glance.image["acstor_boot_message"]
    assert glance.image["acstor_boot_retry"] == "1 never"
    assert not builds.make_boot_image(IMAGE_ID)
    assert glance.image["acstor_boot_retry"] == "1 never"


@pytest.mark.expect_log("over their quota of 16GiB")
def test_boot_image_over_the_quota_of_its_project_is_not_made(glance, made, tmp_path):
    glance.artefacts[artefacts.Kind.CHUNK_MAP]["size"] = (16 << 30) - 1000
    made.add_trace(boot(5, 3))
    assert not made.make_boot_image(IMAGE_ID)
    assert glance.published == []
    assert list((tmp_path / "state/boot").iterdir()) == []


def test_build_over_the_quota_of_its_project_is_retried_later(glance, tmp_path, conf):
    (tmp_path / "state").mkdir()
    glance.image |= {"acstor_state": "ready", "acstor_state_of": IMAGE_ID}
    glance.artefacts[artefacts.Kind.CHUNK_MAP]["size"] = 16 << 30
    builds = boot_image_maker.BootImageMaker(
        glance, conf, build_modes.BuildModes(builds=True, records=False)
    )
    assert not builds.make_boot_image(IMAGE_ID)
    assert "over their quota" in glance.image["acstor_boot_message"]
    assert glance.image["acstor_boot_retry"].startswith("1 2")


def test_boot_image_is_no_longer_than_its_image(glance, conf, tmp_path):
    made = make(tmp_path, glance, conf, spare_artefact_bytes=0)
    output = tmp_path / "boot image"
    output.write_bytes(bytes(101))
    made._reserve(glance_records.image(size=101), output)
    with pytest.raises(errors.LimitExceeded, match="its boot_image would have 101 bytes"):
        made._reserve(glance_records.image(size=100), output)
    assert not output.exists()
