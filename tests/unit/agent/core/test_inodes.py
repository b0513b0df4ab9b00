# SPDX-License-Identifier: Apache-2.0
import itertools
import uuid

import pytest

from acstor_agent.core.boot import boot_recorder
from acstor_agent.core.disks import disk_header
from acstor_agent.core.mount import inodes
from acstor_common import errors
from acstor_common.model import ids

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
DISK = disk_header.DiskId("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
KEY = bytes(range(32))


def host(key: bytes = KEY) -> inodes.Inodes:
    return inodes.Inodes(inodes.keyed(key))


def one_number_for_all(name: bytes) -> int:
    return 7


def test_inode_numbers_and_handles_are_stable_across_versions():
    """A change of a released one needs a new value of LAYOUT and a new line here."""
    numbers = host()
    image = numbers.register_image(IMAGE)
    tag = numbers.process_tag(4321, 987654)
    disk = numbers.register_disk(DISK)
    found = (image, disk, tag, numbers.open(image, 3, tag), numbers.open_disk(disk, True))
    kept = {
        1: (
            *(0x800002C04216FB6E, 0x40000266D3FB5A96, 0x296E),
            *(0x83A5BAC04216FB6E, 0x41000266D3FB5A96),
        )
    }
    assert kept[inodes.LAYOUT] == found


def test_next_worker_resolves_every_handle_of_the_former_one():
    former, this = host(), host()
    inode = former.register_image(IMAGE)
    this.register_image(IMAGE)
    recorded = [former.open(inode, number) for number in range(1, boot_recorder.OPENERS + 1)]
    others = [former.open(inode, 0) for _ in range(80)]
    assert [this.opening_of(handle).opener for handle in recorded] == [1, 2, 3, 4, 5, 6, 7]
    assert {this.opening_of(handle).image_id for handle in (inode, *recorded, *others)} == {IMAGE}


def test_next_worker_knows_the_disk_of_a_synchronous_handle():
    former, this = host(), host()
    inode = former.register_disk(DISK)
    handle = former.open_disk(inode, is_synchronous=True)
    assert this.disk_of(handle) is None
    this.register_disk(DISK)
    assert this.disk_of(handle) == this.disk_of(inode) == DISK
    assert inodes.is_synchronous(handle) and not inodes.is_synchronous(inode)
    assert this.guest_of(handle) == this.guest_of(inode)


def test_unrecorded_guest_never_gets_a_recorded_openers_number():
    known = host()
    inode = known.register_image(IMAGE)
    handles = [known.open(inode, 0) for _ in range(80)]
    assert min(known.openings[handle].opener for handle in handles) > boot_recorder.OPENERS
    assert all(a != b for a, b in itertools.pairwise(handles))


def test_guest_is_named_by_its_disk_or_its_opening():
    known = host()
    assert str(known.guest_of(known.register_disk(DISK))) == f"guest:{DISK}"
    assert str(known.guest_of(known.open(known.register_image(IMAGE), 3))) == f"guest:{IMAGE}/3"
    assert str(known.guest_of(12345)) == "guest:"


def test_inode_numbers_and_handles_are_unique():
    known = host()
    some_ids = [str(uuid.UUID(int=n)) for n in range(200)]
    numbers = [known.register_disk(disk_header.DiskId(one)) for one in some_ids]
    for inode in [known.register_image(ids.parse_image_id(one)) for one in some_ids]:
        numbers += [inode, *(known.open(inode, opener) for opener in range(1, 64))]
    assert len(set(numbers)) == len(numbers) == 200 + 200 * 64
    assert min(numbers) > 3  # those of the root and the folders


def test_inode_number_depends_on_the_key():
    assert host().of_image(IMAGE) != host(bytes(32)).of_image(IMAGE)


def test_image_with_a_colliding_inode_number_is_refused():
    known = inodes.Inodes(one_number_for_all)
    handle = known.open(known.register_image(IMAGE), 1)
    with pytest.raises(errors.NumberInUse) as refused:
        known.register_image(OTHER)
    assert IMAGE in str(refused.value) and OTHER in str(refused.value)
    assert known.opening_of(handle)[:2] == (IMAGE, 1)
    assert known.register_image(IMAGE) == known.of_image(OTHER)


def test_disk_with_a_colliding_inode_number_is_refused():
    known = inodes.Inodes(one_number_for_all)
    known.register_image(IMAGE)
    assert known.register_disk(DISK)
    with pytest.raises(errors.NumberInUse, match=f"disk {OTHER} .* disk {DISK}"):
        known.register_disk(disk_header.DiskId(OTHER))


@pytest.mark.parametrize("order", [(IMAGE, OTHER), (OTHER, IMAGE)])
def test_inode_number_shared_by_two_images_at_start_is_given_to_neither(order):
    known = inodes.Inodes(one_number_for_all)
    (refused,) = known.register_all(order, [DISK])
    assert IMAGE in str(refused) and OTHER in str(refused)
    assert known.opening_of(known.of_image(IMAGE)) is None
    for image_id in order:
        with pytest.raises(errors.NumberInUse):
            known.register_image(image_id)
    assert known.disks == {known.of_disk(DISK): DISK}


def test_forgotten_image_and_disk_leave_no_state():
    known = host()
    kept = [known.register_image(OTHER), known.register_disk(disk_header.DiskId(OTHER))]
    for _ in range(3):
        inode = known.register_image(IMAGE)
        for opener in range(20):
            known.open(inode, opener)
        known.register_disk(DISK)
        known.forget_image(IMAGE)
        known.forget_disk(DISK)
        assert known.opening_of(inode) is None
    assert sorted(known._owners) == sorted(kept)
    assert known.openings == {}


def test_forgetting_a_refused_image_or_disk_keeps_the_owner():
    known = inodes.Inodes(one_number_for_all)
    known.register_image(IMAGE)
    known.register_disk(DISK)
    known.forget_image(OTHER)
    known.forget_disk(disk_header.DiskId(OTHER))
    assert known.opening_of(known.of_image(IMAGE)).image_id == IMAGE
    assert list(known.disks.values()) == [DISK]


def test_inode_numbers_of_detached_images_are_kept_up_to_a_limit():
    known = inodes.Inodes(inodes.keyed(KEY), detached_limit=10)
    some = [ids.parse_image_id(str(uuid.UUID(int=number))) for number in range(100)]
    handles = {image_id: known.open(known.register_image(image_id), 3) for image_id in some}
    for image_id in some:
        known.image_detached(image_id)
        assert known.opening_of(handles[image_id]).image_id == image_id
    assert [image_id for image_id in some if known.opening_of(handles[image_id])] == some[-10:]
    known.register_image(some[-10])  # attached again, so it does not count
    for image_id in (some[-1], *some[:9]):
        known.register_image(image_id)
        known.image_detached(image_id)
    assert known.opening_of(handles[some[-10]])
    assert known.opening_of(handles[some[-1]])
    assert len(known._detached) == 10 and len(known._images) == 11


def test_handle_identifies_the_opening_process_to_every_worker():
    former, this = host(), host()
    inode = former.register_image(IMAGE)
    this.register_image(IMAGE)
    tag = former.process_tag(4242, 123456)
    handle = former.open(inode, 3, tag)
    opening = this.opening_of(handle)
    assert opening[:2] == (IMAGE, 3)
    assert this.owner_of(opening.guest) == (inode, tag)
    assert this.process_tag(4242, 123456) == tag != this.process_tag(4242, 123457)


def test_process_tag_is_never_zero():
    tags = [host().process_tag(pid, started) for pid in range(1, 200) for started in range(200)]
    assert 1 <= min(tags) and max(tags) < 1 << 14
    assert len(set(tags)) > 14_000


def test_owner_of_a_disk_or_an_unknown_opener_is_its_file():
    known = host()
    assert known.owner_of(known.guest_of(known.register_disk(DISK))) == (known.of_disk(DISK), 0)
    handle = known.open(known.register_image(IMAGE), 0)
    assert known.owner_of(known.guest_of(handle)) == (known.of_image(IMAGE), 0)


def test_closed_handles_leave_no_state():
    known = host()
    inode = known.register_image(IMAGE)
    for pid in range(1, 500):
        handle = known.open(inode, 0, known.process_tag(pid, 1))
        assert known.openings[handle].image_id == IMAGE
        known.handle_closed(handle)
        known.handle_closed(handle)
    assert known.openings == {}
    assert known.opening_of(handle).image_id == IMAGE  # another opener may have the same handle
