# SPDX-License-Identifier: Apache-2.0
"""Images from the command line to agents and Glance and back, over everything that is real.

Agents run in namespaces and read images from a folder; Glance has the same images
under the same ids, and decides who may see them.
"""

import contextlib
import json
import pathlib
import re
import shutil
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from keystoneauth1 import adapter

from acstor_common.image import artefacts
from acstor_common.model import ids
from acstor_glance.client import work_leases
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import decision
from tests.lab import local
from tests.lab import network
from tests.lab import relay
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import cloud as openstack
from tests.lab.openstack import traces
from tests.lab.openstack import uploads

pytestmark = hosts.needs_fuse

LINK_MBIT = 50
DEADLINE_S = 60.0
IMAGE = local.random_bytes(4 << 20, seed=66)
API = {"service_type": acstor_decision.SERVICE_TYPE}
OPEN_TO_TENANTS = {"acstor:image:list": "", "acstor:image:get": ""}


class Cloud:
    """Two hosts, an instance, the API, and a listener beside the lab's Glance."""

    def __init__(self, lab: openstack.Cloud, images: local.ImageFolder) -> None:
        self.lab, self.images = lab, images
        self.agents: dict[str, agents.Agent] = {}
        self.image_id = ids.ImageId("")
        self.door: relay.Relay
        self.instance: decision.Instance
        self.listener: acstor_glance.Listener

    def acstor(self, *words: str, user: str = "admin") -> Any:
        """Run ``openstack acstor …`` and return what it says in JSON."""
        done = acstor_decision.openstack(self.lab, user, *words, "-f", "json")
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout)

    def refused(self, *words: str, user: str = "admin") -> str:
        """Run what is refused; return what it says."""
        done = acstor_decision.openstack(self.lab, user, *words)
        assert done.returncode != 0, done.stdout
        assert "Traceback" not in done.stderr
        return done.stderr

    def row(self) -> dict[str, Any]:
        """Return what the list of images says of the image."""
        [found] = [row for row in self.acstor("image", "list") if row["ID"] == self.image_id]
        return dict(found)

    def image(self) -> dict[str, Any]:
        found: dict[str, Any] = self.acstor("image", "show", self.image_id)
        return found


@pytest.fixture(scope="module")
def cloud(
    openstack_lab: openstack.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    if shutil.which("/usr/sbin/rabbitmq-server") is None:
        pytest.skip("RabbitMQ is not installed")
    lab = openstack_lab
    lab.start_image_services()
    folder = tmp_path_factory.mktemp("decision-images")
    images = local.ImageFolder(folder / "images")
    connection = f"sqlite:///{folder}/decision.sqlite"
    made = Cloud(lab, images)
    made.image_id = images.add(IMAGE)
    with contextlib.ExitStack() as stack:
        listener = acstor_glance.Listener(
            "listener", lab, folder / "listener", sections=traces.OPTIONS, boot_images="none"
        )
        api = acstor_decision.DecisionApi(lab, folder / "api", connection, OPEN_TO_TENANTS)
        api.changes = {  # hosts stay up while the broker is restarted
            **traces.OPTIONS,
            "acstor_decision": {"dead_after_samples": 60},
        }
        net = stack.enter_context(network.Network(2, LINK_MBIT))
        door = stack.enter_context(relay.Relay(net.source, lab.rabbitmq.port))
        instance = decision.Instance(
            folder, "one", lab.rabbitmq.url, connection, dead_after_samples=60
        )
        stack.enter_context(instance)
        made.door, made.instance, made.listener = door, instance, listener
        for service in (listener, api):
            stack.callback(service.stop)
            service.start()
        for service in (listener, api):
            service.wait_ready()
        api.register()
        broker = f"rabbit://guest:guest@{door.address}/"
        for host in net.hosts:
            agent = decision.agent(
                host,
                instance,
                images,
                broker,
                LINK_MBIT,
                keep_images="host" if host.name == "h2" else "none",
                constants={tuned.BOOT_IDLE_S: DEADLINE_S * 10},
            )
            made.agents[host.name] = stack.enter_context(agent)
        stack.callback(agents.ask_to_end, made.agents.values())
        for agent in made.agents.values():
            agent.wait_ready()
        lab.connect("tenant").image.create_image(
            name="web",
            id=made.image_id,
            data=IMAGE,
            disk_format="raw",
            container_format="bare",
            visibility="private",
        )
        stack.callback(delete, lab, made.image_id)
        runs.wait_for(
            lambda: made.image()["state"] == "ready" and len(made.acstor("host", "list")) == 2,
            DEADLINE_S,
            "an image that is prepared, and two hosts",
            lambda: "\n".join([listener.log()[-2000:], instance.log()[-2000:], api.log()[-2000:]]),
        )
        yield made


def delete(lab: openstack.Cloud, image_id: str) -> None:
    """Delete an image of Glance's, though acstor may protect it."""
    uploads.Images(lab).patch(image_id, protected=False)
    lab.connect("admin").image.delete_image(image_id)


def is_right(cloud: Cloud, host: str) -> bool:
    """Read all of the image on a host; its bytes are not for a failing test to print."""
    return bool(cloud.agents[host].image_path(cloud.image_id).read_bytes() == IMAGE)


def test_pre_seed_fills_named_hosts_and_hosts_that_lack_the_image(cloud):
    first = cloud.acstor("image", "pre-seed", cloud.image_id, "--host", "h1", "--wait")
    assert first == [{"Host": "h1", "Task": "pre_seed: done, 100 %"}]
    assert cloud.agents["h1"].status()["images"][cloud.image_id]["cached_bytes"] == len(IMAGE)
    assert cloud.image()["warm_hosts"] == 1
    second = cloud.acstor("image", "pre-seed", "web", "--count", "5", "--wait")
    assert [row["Host"] for row in second] == ["h2"]
    shown = cloud.image()
    assert (shown["warm_hosts"], shown["cached_bytes"]) == (2, 2 * len(IMAGE))
    assert shown["fetched"]["source"] > 0 and shown["fetched"]["peer"] > 0


def test_disks_of_an_image_missing_in_glance_are_flattened(cloud):
    agent, disk_ids = cloud.agents["h1"], [str(uuid.uuid4()) for _ in range(2)]
    whole, lost = (cloud.images.add(local.random_bytes(2 << 20, seed=n)) for n in (68, 69))
    for disk_id, image_id in zip(disk_ids, (whole, lost), strict=True):
        agent.ctl("make-disk", disk_id, image_id)
    cloud.images.path(lost).unlink()
    listing = ("image", "host", "list", lost)
    runs.wait_for(
        lambda: acstor_decision.openstack(cloud.lab, "admin", *listing).returncode == 0,
        DEADLINE_S,
        "the agent's next look at its images",
        agent.log,
    )
    done = cloud.acstor("image", "flatten", whole, "--wait")
    assert {row["Host"]: row["Task"] for row in done} == dict.fromkeys(
        cloud.agents, "flatten: done, 100 %"
    )
    original = cloud.images.path(whole).read_bytes()
    cloud.images.path(whole).unlink()
    assert (agent.mount_point / "disks" / f"{disk_ids[0]}.raw").read_bytes() == original
    why = cloud.refused("image", "flatten", lost, "--host", "h1", "--wait")
    assert f"disk {disk_ids[1]}: 32 chunks unavailable" in why
    for disk_id in disk_ids:
        agent.ctl("drop-disk", disk_id)


def test_fill_reports_progress_and_can_be_paused_and_hurried(cloud: Cloud) -> None:
    image_id = cloud.images.add(local.random_bytes(4 << 20, seed=70))
    asking = adapter.Adapter(cloud.lab.session("admin"), **API)

    def whole() -> dict[str, Any]:
        """Return how far the image is on h2."""
        answer = asking.get(f"/v1/images/{image_id}/hosts", raise_exc=False)
        found = answer.json()["hosts"] if answer.status_code == 200 else []
        return next((row["fill"] for row in found if row["host"] == "h2"), None) or {}

    def wait_until(state: str) -> dict[str, Any]:
        runs.wait_for(
            lambda: whole().get("state") == state and whole()["cached_share"] is not None,
            DEADLINE_S,
            state,
            lambda: str(whole()),
        )
        return whole()

    with cloud.agents["h2"].image_path(image_id).open("rb") as guest:
        guest.read(1)
        part = wait_until("booting")  # the rest would come when the boot is over
        assert part["is_used"] and part["total_bytes"] == 4 << 20 and 0 < part["cached_share"] < 1
        cloud.acstor("image", "pause", image_id, "--wait")
        assert wait_until("paused")["mode"] == "paused"
        assert (
            cloud.acstor("image", "show", image_id)["fully_cached"] == "on 0 of 1 hosts that use it"
        )
        [row] = cloud.acstor("image", "hydrate", image_id, "--deadline", "600", "--wait")
        assert row == {"Host": "h2", "Task": "hydrate: done"}
        assert wait_until("fully_cached")["remaining_bytes"] == 0
        shown = cloud.acstor("image", "show", image_id)
        assert (shown["using_hosts"], shown["fully_cached_hosts"]) == (1, 1)
        assert shown["fill_by_host"]["h2"]["cached_share"] == 1.0
    why = cloud.refused("image", "hydrate", image_id, "--host", "h1", "--wait")
    assert "h1: " in why and "cannot be cached completely: keep_images is none" in why
    cloud.agents["h2"].ctl("detach", image_id)


def test_boots_show_the_origin_of_the_bytes_of_guests(cloud):
    cloud.acstor("image", "pre-seed", cloud.image_id, "--wait")
    before = cloud.image()["read"]
    assert is_right(cloud, "h2")
    runs.wait_for(
        lambda: cloud.image()["read"]["local"] >= before["local"] + len(IMAGE),
        DEADLINE_S,
        "the next report",
        lambda: str(cloud.image()),
    )
    row = cloud.row()
    assert (row["Name"], row["Local %"]) == ("web", 100.0)


def test_image_that_a_host_still_needs_cannot_be_deleted(cloud):
    agent, tenant = cloud.agents["h1"], cloud.lab.connect("tenant").image
    data = local.random_bytes(4 << 20, seed=71)
    image_id = cloud.images.add(data)
    formats = {"disk_format": "raw", "container_format": "bare"}
    tenant.create_image(name="used", id=image_id, data=data, **formats)
    agent.ctl("attach", image_id)
    with agent.image_path(image_id).open("rb", buffering=0) as guest:
        assert guest.read(10) == data[:10]
        runs.wait_for(
            lambda: tenant.get(f"/images/{image_id}").json()["protected"],
            DEADLINE_S,
            "protection of the image",
            cloud.listener.log,
        )
        refused = tenant.delete(f"/images/{image_id}")
        assert refused.status_code == 403, refused.text
        assert "is protected and cannot be deleted" in refused.text
        metric = 'acstor_glance_needed_images{protection="acstor"}'
        runs.wait_for(
            lambda: uploads.metric(cloud.listener, metric) > 0,
            DEADLINE_S,
            "the count of protected images",
            cloud.listener.log,
        )
    delete(cloud.lab, image_id)  # its owner's will: it is not protected again
    agent.ctl("detach", image_id)


def test_image_is_prepared_again_on_request(cloud):
    before = cloud.image()
    after = cloud.acstor("image", "prepare", cloud.image_id, "--force", "--wait", "--timeout", "60")
    assert after["state"] == "ready"
    assert after["chunk_map"] not in (None, before["chunk_map"])
    assert cloud.acstor("image", "prepare", cloud.image_id, "--wait")["state"] == "ready"


def test_traced_request_includes_the_work_of_the_listener(cloud):
    with traces.received(cloud.lab.rabbitmq) as spans:
        words = ("image", "prepare", cloud.image_id, "--force", "--os-profile", traces.KEY)
        said = acstor_decision.openstack(cloud.lab, "admin", *words)
        trace_id = re.search(r"Trace ID: ([0-9a-f-]{36})", said.stdout + said.stderr)[1]
        # One or more: another thread may work on the image at first.
        found = spans.wait_for(trace_id, "acstor_image_preparation", DEADLINE_S)
        assert {one.service for one in found} == {"acstor-glance-listener"}


def test_leased_image_is_prepared_again_when_its_lease_ends(cloud):
    listener = cloud.listener
    before = cloud.image()["chunk_map"]
    other = work_leases.WorkLeases(None, listener.folder / "state", artefacts.Kind.CHUNK_MAP.value)
    with other.lease_image(cloud.image_id) as is_ours:
        assert is_ours
        cloud.acstor("image", "prepare", cloud.image_id, "--force")
        leased = 'acstor_glance_processed_images_total{outcome="leased"}'
        runs.wait_for(
            lambda: uploads.metric(listener, leased) > 0, DEADLINE_S, "the look", listener.log
        )
        assert cloud.image()["chunk_map"] == before
    runs.wait_for(
        lambda: cloud.image()["chunk_map"] not in (None, before),
        DEADLINE_S,
        "a new chunk map",
        listener.log,
    )


def test_boots_are_recorded_on_request(cloud):
    asked = cloud.acstor("boot", "image", "record", cloud.image_id, "--host", "h1", "--boots", "2")
    assert [row["Host"] for row in asked] == ["h1"]

    def task() -> str:
        rows = cloud.acstor("image", "host", "list", cloud.image_id)
        return {row["Host"]: row["Task"] for row in rows}["h1"]

    runs.wait_for(lambda: "record_boots: running" in task(), DEADLINE_S, "the task", task)
    assert cloud.acstor("boot", "image", "show", "web")["image_id"] == cloud.image_id


def test_visibility_of_images_follows_glance(cloud):
    assert [row["ID"] for row in cloud.acstor("image", "list", user="tenant")] == [cloud.image_id]
    assert cloud.acstor("image", "list", user="stranger") == []
    assert "is not known" in cloud.refused("image", "show", cloud.image_id, user="stranger")
    for words in (("image", "host", "list"), ("image", "pre-seed"), ("image", "prepare")):
        assert "does not permit" in cloud.refused(*words, cloud.image_id, user="tenant")


def test_errors_of_the_command_suggest_a_remedy(cloud):
    nowhere = "7d2c1f9e-5d6b-4a5c-9c61-000000000999"
    assert f"image {nowhere} is not known" in cloud.refused("image", "pre-seed", nowhere)
    gone = cloud.refused("image", "pre-seed", cloud.image_id, "--host", "h9")
    assert "hosts send no samples: h9" in gone and "openstack acstor host list" in gone
    assert "No Image found for nothing" in cloud.refused("image", "show", "nothing")


@pytest.mark.parametrize("form", ["csv", "yaml", "value", "table"])
def test_lists_are_printed_in_every_output_format(form, cloud):
    done = acstor_decision.openstack(cloud.lab, "admin", "image", "list", "-f", form)
    assert done.returncode == 0, done.stderr
    assert cloud.image_id in done.stdout


def test_images_are_shown_while_the_broker_is_down(cloud: Cloud) -> None:
    lab = cloud.lab
    lab.rabbitmq.kill()
    try:
        assert cloud.image()["name"] == "web"
        assert "the message bus does not answer" in cloud.refused("image", "pre-seed", "web")
        assert is_right(cloud, "h1")
    finally:
        lab.rabbitmq.start()
        lab.rabbitmq.wait_ready()
    done = cloud.acstor("image", "pre-seed", "web", "--wait")
    assert [row["Task"] for row in done] == 2 * ["pre_seed: done, 100 %"]


@pytest.mark.parametrize("where", [[], ["h2"]], ids=["all hosts", "one host"])
def test_task_lost_with_the_broker_is_sent_again(where, cloud: Cloud) -> None:
    lab, path = cloud.lab, f"/v1/images/{cloud.image_id}"
    asking = adapter.Adapter(lab.session("admin"), **API)

    def reported() -> dict[str, int]:
        found = asking.get(f"{path}/hosts").json()["hosts"]
        return {host["host"]: host["task"]["request"] for host in found if host["task"]}

    with cloud.door.shut():  # agents look for the broker and do not find it
        lab.rabbitmq.kill()  # it forgets their queues: what is sent to them now is nowhere
        lab.rabbitmq.start()
        lab.rabbitmq.wait_ready()
        asked = asking.post(f"{path}/pre-seed", json={"hosts": where}).json()
    assert asked["request"] not in reported().values()
    runs.wait_for(
        lambda: (
            {host for host, request in reported().items() if request == asked["request"]}
            == set(asked["hosts"])
        ),
        DEADLINE_S,
        "hosts that speak of the task",
        cloud.instance.log,
    )
    assert sorted(asked["hosts"]) == (where or sorted(cloud.agents))
    assert f"task {asked['request']}: resending it" in cloud.instance.log()


def test_admin_sees_images_without_names_while_glance_is_down(cloud: Cloud) -> None:
    lab = cloud.lab
    lab.glance.kill()
    try:
        row = cloud.row()
        assert (row["Name"], row["Warm"]) == (None, 2)
        assert "Glance does not list its images" in cloud.refused("image", "list", user="tenant")
        assert is_right(cloud, "h1")
    finally:
        lab.glance.start()
        lab.glance.wait_ready()
    assert cloud.image()["name"] == "web"


def test_hosts_read_and_the_api_answers_503_while_keystone_is_down(cloud: Cloud) -> None:
    lab = cloud.lab
    known, unseen = (adapter.Adapter(lab.session("admin"), **API) for _ in range(2))
    assert known.get("/v1/hosts").status_code == 200  # the API has seen its token now
    assert unseen.get_endpoint()  # signs in
    fresh = cloud.images.add(local.random_bytes(2 << 20, seed=67))
    lab.keystone.kill()
    try:
        for agent in cloud.agents.values():
            assert agent.image_path(fresh).read_bytes() == cloud.images.path(fresh).read_bytes()
        assert known.get("/v1/hosts").status_code == 200
        answer = unseen.get("/v1/hosts", raise_exc=False)
        assert answer.status_code == answer.json()["error"]["code"] == 503
        assert "Keystone does not answer" in answer.json()["error"]["message"]
        assert lab.keystone.url in cloud.refused("host", "list")
    finally:
        lab.keystone.start()
        lab.keystone.wait_ready()
    assert unseen.get("/v1/hosts").json()["hosts"]
    assert len(cloud.acstor("host", "list")) == 2


def test_shell_completes_the_commands(cloud: Cloud, tmp_path: pathlib.Path) -> None:
    script = runs.tool([agents.BIN / "openstack", "complete"])
    for words in ("acstor_image='", "acstor_boot_image='", "acstor_server='"):
        assert f"cmds_{words}" in script
    [line] = [line for line in script.splitlines() if "cmds_acstor_image='" in line]
    assert {"list", "show", "prepare", "pre-seed", "hydrate", "pause", "resume", "unpin"} <= set(
        line.partition("'")[2].strip("'").split()
    )
