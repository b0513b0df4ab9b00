# SPDX-License-Identifier: Apache-2.0
"""A reused image id never exposes bytes of the former image.

Nova's hook calls a real agent on a real mount; the source acts as a Glance whose database was
purged: another project's image has the id and the length of a former one.

"""

import pathlib
from collections.abc import Iterator

import pytest

from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from tests.fakes import hosts
from tests.fakes import nova_backend
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

IMAGE = ids.parse_image_id(nova_backend.IMAGE)
FORMER, LATER = (local.random_bytes(1 << 20, seed=seed) for seed in (90, 91))
HASH = chunk_map.OsHash("sha512", b"")


def put(images: local.ImageFolder, data: bytes) -> dict[str, str]:
    """Put an image into the source under the id; return Glance's properties of its bytes."""
    images.path(IMAGE).write_bytes(data)
    images.map_path(IMAGE).unlink(missing_ok=True)
    made = prehash.prehash(images.path(IMAGE), images.map_path(IMAGE), IMAGE, os_hash=HASH)
    return {"os_hash_algo": made.os_hash_algo, "os_hash_value": made.os_hash_value}


@pytest.fixture
def agent(tmp_path: pathlib.Path, images: local.ImageFolder) -> Iterator[agents.Agent]:
    with local.agent(
        tmp_path / "host", images, keep_images="none", read_deadline_s=20.0
    ) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def nova(tmp_path: pathlib.Path, agent: agents.Agent) -> nova_backend.Nova:
    folder = tmp_path / "nova"
    folder.mkdir()
    made = nova_backend.Nova(folder)
    made.host.agent_wait_s = 60.0
    made.conf.set_override("control_socket", str(agent.control_socket), group="acstor")
    made.conf.set_override("mount_point", str(agent.mount_point), group="acstor")
    return made


def test_owner_of_a_reused_id_never_reads_bytes_of_the_former_image(
    nova: nova_backend.Nova, images: local.ImageFolder
) -> None:
    nova.image |= put(images, FORMER)
    former = nova.spawn()
    assert nova.base.read_bytes() == FORMER
    with nova.base.open("rb", buffering=0) as guest:
        nova.image |= put(images, LATER)
        with pytest.raises(nova_backend.CannotStartError, match="its id was reused"):
            nova.spawn()
        assert guest.read() == FORMER
    pathlib.Path(former.path).unlink()  # the former instance is deleted
    nova.spawn()
    assert nova.base.is_symlink()
    assert nova.base.read_bytes() == LATER  # none of the pages in the page cache
    assert not nova.host.fallbacks.counts_by_reason


@pytest.mark.parametrize("moment", ["start", "live migration"])
def test_instance_of_a_former_image_is_not_started_on_the_reused_id(
    nova: nova_backend.Nova, images: local.ImageFolder, agent: agents.Agent, moment: str
) -> None:
    """The host has lost the former map, or never had it."""
    nova.image |= put(images, FORMER)
    made = nova.spawn()
    made.libvirt_info("none")
    nova.image |= put(images, LATER)
    agents.request(agent.control_socket, "detach-image", image_id=IMAGE)
    again = nova.backend(made._instance, "disk", made.path)
    with pytest.raises(nova_backend.CannotStartError, match="its id was reused"):
        if moment == "start":
            again.libvirt_info("none")
        else:
            pathlib.Path(made.path).unlink()
            made._instance.task_state = "migrating"
            nova.cached(again)


@pytest.mark.expect_log("is open in processes")
def test_open_former_image_stays_and_the_new_one_is_downloaded(
    nova: nova_backend.Nova, images: local.ImageFolder, agent: agents.Agent
) -> None:
    nova.image |= put(images, FORMER)
    pathlib.Path(nova.spawn().path).unlink()
    with agent.image_path(IMAGE).open("rb", buffering=0) as guest:
        assert guest.read() == FORMER
        nova.image |= put(images, LATER)
        nova.spawn()
        assert nova.base.read_bytes() == nova_backend.DOWNLOADED
        guest.seek(0)
        assert guest.read() == FORMER


@pytest.mark.expect_log("its id was reused")
def test_new_image_without_a_chunk_map_is_downloaded(
    nova: nova_backend.Nova, images: local.ImageFolder
) -> None:
    """The source still has the artefacts of the former image, as a stale copy does."""
    nova.image |= put(images, FORMER)
    pathlib.Path(nova.spawn().path).unlink()
    nova.image |= {"os_hash_value": "ab" * 64}
    nova.spawn()
    assert nova.base.read_bytes() == nova_backend.DOWNLOADED
