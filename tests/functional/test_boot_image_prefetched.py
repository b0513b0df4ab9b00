# SPDX-License-Identifier: Apache-2.0
"""Prefetch of boot images, with all services real.

Four hosts in namespaces read from a real Glance: h1 prefetches no boot image, h2 and h4 those of
new versions of images that they use, h3 those of all public images.

"""

import contextlib
import json
import mmap
import os
import pathlib
import random
import shutil
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import pytest

from acstor_common.formats import boot_image
from acstor_common.image import artefacts
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import decision
from tests.lab import network
from tests.lab import relay
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import cloud as openstack
from tests.lab.openstack import uploads

pytestmark = hosts.needs_fuse

LINK_MBIT = 100
DEADLINE_S = 150.0
CHUNK = uploads.CHUNK
BOOT_CHUNKS = 320
"""Chunks of a boot: 20 MiB.  Half of them, as in a new version, take 0.9 s on this link."""
_HALF = BOOT_CHUNKS // 2
_DICE = random.Random(1)
TRACE = [*_DICE.sample(range(_HALF), _HALF), *_DICE.sample(range(_HALF, BOOT_CHUNKS), _HALF)]
"""Their order: scattered, so that no read-ahead starts; one half after the other."""
MODES = {"h1": "none", "h2": "booted", "h3": "all", "h4": "booted"}
DEBIAN = {"os_distro": "debian", "os_version": "13"}
BOOT_IMAGE = artefacts.Kind.BOOT_IMAGE


class Boot(NamedTuple):
    """The boot of a guest: bytes read, duration, and bytes that the host fetched meanwhile.

    :param read: bytes read, by origin
    :param loaded: bytes of the boot image loaded into memory for it, by origin

    """

    data: bytes
    took_s: float
    fetched_bytes: int
    read: dict[str, int]
    loaded: dict[str, int]

    def check_local_only(self, kept_bytes: int) -> None:
        """Check that all bytes came from this host, the prefetched ones from its cache."""
        assert set(self.read) <= {"boot", "frame", "cache"}
        assert sum(self.read.values()) == len(self.data)
        assert set(self.loaded) == {"cache"}
        assert self.loaded["cache"] >= kept_bytes  # some passed through this host to the other one


class Cloud:
    """Four hosts, a decision service with its API, and a listener beside the lab's Glance."""

    def __init__(self, lab: openstack.Cloud, listener: acstor_glance.Listener) -> None:
        self.lab, self.listener = lab, listener
        self.agents: dict[str, agents.Agent] = {}

    def log(self) -> str:
        """Return the ends of all logs."""
        logs = (self.listener.log(), *(agent.log() for agent in self.agents.values()))
        return "\n".join(log[-1500:] for log in logs)

    def wait(self, check: Any, what: str) -> None:
        runs.wait_for(check, DEADLINE_S, what, self.log)

    def boot(self, host: str, image_id: str) -> Boot:
        """Read the chunks of a boot on a host, in order and past the page cache."""
        agent = self.agents[host]
        before = fetched_bytes(agent)
        began_s = time.monotonic()
        fd = os.open(agent.image_path(image_id), os.O_RDONLY | os.O_DIRECT)
        try:
            buffer = mmap.mmap(-1, CHUNK)
            data = b"".join(
                bytes(buffer[: os.preadv(fd, [buffer], chunk_no * CHUNK)]) for chunk_no in TRACE
            )
            took_s = time.monotonic() - began_s
            self.wait(lambda: not self._is_loading(host, image_id), "the rest of the boot image")
        finally:
            os.close(fd)
        [reported, *_] = agent.timelines(image_id)
        loaded = [span.bytes for span in reported.spans if span.what == "boot image"]
        return Boot(data, took_s, fetched_bytes(agent) - before, reported.bytes, *loaded)

    def _is_loading(self, host: str, image_id: str) -> bool:
        boot_image = self.agents[host].status()["images"][image_id]["boot_image"]
        return bool(boot_image["state"] == "loading")

    def ahead(self, host: str) -> tuple[int, int]:
        """Return how many boot images a host prefetched, and their bytes."""
        boots = self.agents[host].status()["boot"]
        return boots["prefetched"], boots["prefetched_bytes"]

    def prefetched_bytes(self, host: str) -> int:
        """Return how many bytes of boot images a host keeps that no guest has needed yet."""
        kept: int = self.agents[host].status()["cache"]["bytes_by_class"]["prefetched"]
        return kept

    def source_bytes(self) -> int:
        """Return how many bytes all hosts together have read from Glance."""
        shown = (agent.status()["exchange"] for agent in self.agents.values())
        return sum(one["source_bytes"] for one in shown)

    def tasks(self, image_id: str, kind: str) -> dict[str, str]:
        """Return tasks of a kind by host, from ``openstack acstor image host list``."""
        words = ("image", "host", "list", image_id, "-f", "json")
        done = acstor_decision.openstack(self.lab, "admin", *words)
        if done.returncode:
            return {}
        return {row["Host"]: row["Task"] for row in json.loads(done.stdout) if kind in row["Task"]}


def booted(data: bytes) -> bytes:
    """Return the bytes of an image that a boot reads."""
    return b"".join(data[number * CHUNK : (number + 1) * CHUNK] for number in TRACE)


def is_prepared(glance: uploads.Images, image_id: str) -> bool:
    return artefacts.state_of(glance.image(image_id)) is artefacts.State.READY


def boot_image_of(glance: uploads.Images, image_id: str) -> str:
    """Return the id of an image's boot image, or "" if it has none."""
    return str(glance.record(image_id).get(BOOT_IMAGE.pointer, ""))


def frames_of(glance: uploads.Images, image_id: str) -> Sequence[boot_image.Frame]:
    """Return the frames of an image's boot image."""
    stored = glance.admin.get(f"/images/{boot_image_of(glance, image_id)}/file").content
    return boot_image.parse_head(stored, f"boot image of image {image_id}").frames


def fetched_bytes(agent: agents.Agent) -> int:
    """Return how many bytes a host got from the source and from peers."""
    return sum(count["bytes"] for count in agent.status()["fetched"].values())


@pytest.fixture
def cloud(glance: uploads.Images, tmp_path: pathlib.Path) -> Iterator[Cloud]:
    if shutil.which("/usr/sbin/rabbitmq-server") is None:
        pytest.skip("RabbitMQ is not installed")
    lab = glance.lab
    connection = f"sqlite:///{tmp_path}/decision.sqlite"
    constants: tuned.Constants = {
        tuned.NOTIFICATION_POOL: f"test-{tmp_path.name}",
        tuned.TRACES_NEEDED: 1,
    }
    options = {"constants": constants, "protect_used_images": False}  # the test deletes them
    listener = acstor_glance.Listener("listener", lab, tmp_path, **options)
    made = Cloud(lab, listener)
    with contextlib.ExitStack() as stack:
        rest = acstor_decision.DecisionApi(lab, tmp_path / "api", connection)
        net = stack.enter_context(network.Network(len(MODES), LINK_MBIT))
        broker, keystone, images = (
            stack.enter_context(relay.Relay(net.source, port)).address
            for port in (lab.rabbitmq.port, lab.keystone.port, lab.glance.port)
        )
        instance = decision.Instance(tmp_path, "one", lab.rabbitmq.url, connection)
        stack.enter_context(instance)
        stack.callback(rest.stop)
        rest.start()
        rest.wait_ready()
        rest.register()
        stack.callback(listener.stop)
        listener.start()
        listener.wait_ready()
        auth_url = lab.keystone.auth_url.replace(f"127.0.0.1:{lab.keystone.port}", keystone)
        source = {**api.credentials(auth_url, "acstor"), "endpoint_override": f"http://{images}"}
        for host in net.hosts:
            agent = decision.agent(
                host,
                instance,
                None,
                f"rabbit://guest:guest@{broker}/",
                LINK_MBIT,
                sections={"source_glance": source},
                sources="glance",
                prefetch_boot_images=MODES[host.name],
                constants={tuned.RECORD_IDLE_S: 5.0},
            )
            made.agents[host.name] = stack.enter_context(agent)
        stack.callback(agents.ask_to_end, made.agents.values())
        for agent in made.agents.values():
            agent.wait_ready()
        made.wait(
            lambda: all(a.status()["ring"]["hosts"] == len(MODES) for a in made.agents.values()),
            "one table on all hosts",
        )
        yield made


@pytest.mark.nightly
def test_new_version_of_an_image_boots_from_a_prefetched_boot_image(
    cloud: Cloud, glance: uploads.Images, record_property: Any
) -> None:
    dice = random.Random(30)
    half_bytes = _HALF * CHUNK
    first = dice.randbytes((BOOT_CHUNKS + 20) * CHUNK)
    second = first[:half_bytes] + dice.randbytes(len(first) - half_bytes)
    first_id = glance.upload(first, **DEBIAN)
    cloud.wait(lambda: is_prepared(glance, first_id), "the first version's chunk map")
    for host in ("h2", "h4", "h1"):  # all hosts cache it before there is a boot image
        assert cloud.boot(host, first_id).data == booted(first)
    cloud.wait(lambda: bool(boot_image_of(glance, first_id)), "a recorded boot image")
    second_id = glance.upload(second, **DEBIAN)
    cloud.wait(lambda: bool(boot_image_of(glance, second_id)), "an inherited boot image")
    inherited = boot_image_of(glance, second_id)
    for host in ("h2", "h4"):
        cloud.wait(lambda: cloud.ahead(host)[0] == 1, "the inherited boot image")  # noqa: B023
        assert cloud.ahead(host)[1] == 0  # all of it is cached since the boot of the version before

    cold = cloud.boot("h1", second_id)
    assert cold.data == booted(second)
    read_bytes = cloud.source_bytes()
    cloud.wait(lambda: boot_image_of(glance, second_id) != inherited, "its own boot image")
    for host in ("h2", "h4"):
        cloud.wait(lambda: cloud.ahead(host)[0] == 2, "its own boot image")  # noqa: B023
    frames = frames_of(glance, second_id)
    assert sorted(number for one in frames for number in one.chunk_nos) == sorted(TRACE)
    new_bytes = sum(one.stored_bytes for one in frames if max(one.chunk_nos) >= _HALF)
    kept = {host: cloud.prefetched_bytes(host) for host in ("h2", "h4")}
    came = {host: cloud.ahead(host)[1] for host in kept}
    read_bytes = cloud.source_bytes() - read_bytes
    print(f"of {new_bytes} bytes came {came}, kept {kept}; {read_bytes} were read of the source")
    for host in kept:  # the rest is cached as chunks, or passed through this host to the other one
        assert 0 < came[host] <= kept[host] <= new_bytes
    assert read_bytes < 1.1 * new_bytes  # the hosts share it
    assert f"image {second_id}: its boot image was prefetched" in cloud.agents["h2"].log()
    assert second_id not in cloud.agents["h2"].status()["images"]  # no guest here has used it
    done = dict.fromkeys(("h2", "h4"), "prefetch_boot_image: done, 100 %")
    cloud.wait(lambda: cloud.tasks(second_id, "prefetch_boot_image") == done, "what operators see")

    warm = {host: cloud.boot(host, second_id) for host in kept}
    for host, boot in warm.items():
        assert boot.data == booted(second)
        boot.check_local_only(kept[host])
        assert cloud.prefetched_bytes(host) == 0
        assert cloud.agents[host].status()["boot"]["prefetched_used_bytes"] == kept[host]
    assert cold.fetched_bytes >= half_bytes
    for name, boot in (("cold", cold), ("ahead", warm["h2"])):
        print(f"{name}: {boot.took_s:.3f} s, {boot.fetched_bytes} bytes came, {boot.read}")
        record_property(f"{name}_s", round(boot.took_s, 3))
        record_property(f"{name}_fetched_bytes", boot.fetched_bytes)
    assert cloud.ahead("h1") == cloud.ahead("h3") == (0, 0)  # the image is private to a project


@pytest.mark.nightly
def test_public_image_is_prefetched_only_by_hosts_that_want_all(
    cloud: Cloud, glance: uploads.Images
) -> None:
    data = random.Random(31).randbytes(40 * CHUNK + BOOT_CHUNKS * CHUNK)
    image_id = glance.upload(data, visibility="public")
    cloud.wait(lambda: is_prepared(glance, image_id), "its chunk map")
    assert cloud.boot("h1", image_id).data == booted(data)
    cloud.wait(lambda: cloud.ahead("h3")[0] == 1, "the boot image on the host that wants all")
    assert cloud.ahead("h2") == (0, 0)
    all_bytes = sum(one.stored_bytes for one in frames_of(glance, image_id))
    assert cloud.ahead("h3") == (1, all_bytes)
    assert cloud.prefetched_bytes("h3") == all_bytes
    warm = cloud.boot("h3", image_id)
    assert warm.data == booted(data)
    warm.check_local_only(all_bytes)
    print(f"public image: {warm.took_s:.3f} s, {warm.fetched_bytes} bytes came, {warm.read}")
