# SPDX-License-Identifier: Apache-2.0
import itertools
import uuid

from acstor_agent.core import boot_recorder
from acstor_agent.core import disk_header
from acstor_agent.core import inodes
from acstor_common import ids

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
DISK = disk_header.DiskId("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")


def test_next_worker_knows_every_handle_that_a_former_one_has_given():
    former, this = inodes.Inodes(), inodes.Inodes()
    for known in (former, this):
        known.know_image(IMAGE)
    inode = inodes.inode_of_image(IMAGE)
    recorded = [former.open(inode, number) for number in range(1, boot_recorder.OPENERS + 1)]
    others = [former.open(inode, 0) for _ in range(20)]
    assert [this.openings[handle].opener for handle in recorded] == [1, 2, 3, 4, 5, 6, 7]
    assert {this.openings[handle].image_id for handle in (inode, *recorded, *others)} == {IMAGE}


def test_guest_that_is_not_recorded_never_has_the_number_of_one_that_is():
    known = inodes.Inodes()
    known.know_image(IMAGE)
    handles = [known.open(inodes.inode_of_image(IMAGE), 0) for _ in range(20)]
    assert min(known.openings[handle].opener for handle in handles) > boot_recorder.OPENERS
    assert all(a != b for a, b in itertools.pairwise(handles))


def test_guest_is_named_by_its_disk_or_its_opening():
    known = inodes.Inodes()
    known.know_image(IMAGE)
    known.know_disks([DISK])
    assert known.guest(inodes.inode_of_disk(DISK)) == DISK
    assert known.guest(known.open(inodes.inode_of_image(IMAGE), 3)) == f"{IMAGE}/3"
    assert known.guest(12345) == ""


def test_no_inode_of_a_disk_is_one_of_an_image():
    some_ids = [str(uuid.UUID(int=n)) for n in range(100)]
    images = {inodes.inode_of_image(ids.parse_image_id(one)) for one in some_ids}
    disks = {inodes.inode_of_disk(disk_header.DiskId(one)) for one in some_ids}
    assert len(images) == len(disks) == 100
    assert not images & disks
