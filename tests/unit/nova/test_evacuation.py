# SPDX-License-Identifier: Apache-2.0
"""Evacuated servers: disks on checkpoints, fallbacks and calls to the agent."""

import json
import os
import subprocess
import types

import pytest

from acstor_common import errors
from acstor_common.disks import recovery_marker
from acstor_common.wire import control_wire
from acstor_nova import agent_client
from acstor_nova import decision_client
from acstor_nova import host_context
from acstor_nova.evacuation import checkpoint_disk
from acstor_nova.evacuation import recovered_disk
from acstor_nova.evacuation import recovering_backend
from acstor_nova.snapshots import delta_snapshot
from tests.fakes import loopback_service
from tests.fakes import nova_backend
from tests.fakes import scripted_agent

NEW, OLD = "0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21", "0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e22"
INSTANCE = nova_backend.INSTANCE
SIZE = 3 << 20
CONTEXT = types.SimpleNamespace(auth_token="a-token")
LISTED = {
    "checkpoints": [
        {"checkpoint_id": NEW, "taken_at": "2026-11-23T15:00:00Z", "new_field": 1},
        {"checkpoint_id": OLD, "taken_at": "2026-11-23T14:00:00Z"},
    ]
}
ATTACHED = scripted_agent.done({"size_bytes": SIZE, "path": "unused"})


def recovery_of(checkpoint_id):
    return {
        "checkpoint_id": checkpoint_id,
        "instance_id": INSTANCE,
        "image_id": nova_backend.IMAGE,
        "owner": "h1",
        "vault_disk": OLD,
        "manifest_name": "ab" * 32,
        "holders": [{"host": "h2", "address": "10.0.0.2:7205"}],
        "key": "cd" * 32,
    }


class Api(loopback_service.LoopbackService):
    """The REST API with response bodies by path and one status for all."""

    def __init__(self) -> None:
        self.status, self.asked = 200, []
        listed = f"/v1/checkpoints?instance={INSTANCE}&limit={decision_client.NEWEST}"
        self.answers = {listed: json.dumps(LISTED).encode()}
        for one in (NEW, OLD):
            path = f"/v1/checkpoints/{one}/recovery"
            self.answers[path] = json.dumps(recovery_of(one)).encode()
        self.listed = listed

    def respond(self, request, body):
        self.asked.append((request.path, request.headers["X-Auth-Token"]))
        return self.status, self.answers.get(request.path, b"{}")


@pytest.fixture
def api():
    with Api() as made:
        yield made


@pytest.fixture
def nova(tmp_path, api):
    made = nova_backend.Nova(tmp_path)
    made.conf.set_override("decision_url", api.url, group="acstor")
    made.answers[control_wire.AttachCheckpoint] = ATTACHED
    (tmp_path / INSTANCE).mkdir()
    disks = tmp_path / "mirror" / "disks"
    disks.mkdir()
    for one in (NEW, OLD):
        (disks / f"{one}.qcow2").write_bytes(bytes(SIZE))
    return made


@pytest.fixture
def agent(nova):
    reported = [{"checkpoint_id": NEW, "instance_id": INSTANCE, "image_id": nova_backend.IMAGE}]
    nova.answers[control_wire.ListRestoredDisks] = scripted_agent.done({"disks": reported})
    nova.answers[control_wire.DropDisk] = scripted_agent.done({})
    with scripted_agent.running(nova.socket, nova.answers) as running:
        yield running


def evacuate(nova):
    with recovering_backend.mark_evacuated(INSTANCE, CONTEXT):
        return nova.spawn(size=SIZE)


def base_of(made):
    said = subprocess.run(
        ["qemu-img", "info", "-U", "--output=json", made.path], check=True, capture_output=True
    )
    reported = json.loads(said.stdout)
    return os.path.basename(reported["full-backing-filename"]), reported["virtual-size"]


def asked(agent, kind):
    return [one for one in agent.asked if isinstance(one, kind)]


def test_evacuated_disk_is_based_on_the_newest_checkpoint(nova, agent, api):
    made = evacuate(nova)
    assert base_of(made) == (f"{NEW}.qcow2", SIZE)
    assert os.readlink(nova.base) == str(nova.mirror)  # no download
    [request] = asked(agent, control_wire.AttachCheckpoint)
    assert (request.checkpoint_id, request.holders) == (NEW, (("h2", "10.0.0.2:7205"),))
    assert {token for _, token in api.asked} == {"a-token"}
    assert (request.backing_file, request.max_bytes) == (str(nova.base), SIZE)
    assert made._instance.metadata == {"acstor_recovered_from": "2026-11-23T15:00:00Z"}


def test_start_uses_the_cache_mode_and_error_policy_of_mirrors(nova, agent):
    info = evacuate(nova).libvirt_info("none")
    assert info.driver_cache == "writeback"
    assert info.format_dom().find("driver").get("rerror_policy") == "stop"


def test_recovered_disk_has_the_size_of_a_larger_flavor(nova, agent):
    with recovering_backend.mark_evacuated(INSTANCE, CONTEXT):
        made = nova.spawn(size=2 * SIZE)
    assert base_of(made)[1] == 2 * SIZE


def test_recovered_disk_has_the_checkpoints_size_without_a_flavor_size(nova, agent):
    with recovering_backend.mark_evacuated(INSTANCE, CONTEXT):
        assert base_of(nova.spawn(size=None))[1] == SIZE
    assert asked(agent, control_wire.AttachCheckpoint)[0].max_bytes == 0


def test_rebuild_uses_no_checkpoint(nova, agent, api):
    made = nova.spawn()
    assert base_of(made)[0] == nova.base.name and api.asked == []


def test_other_disks_and_servers_use_no_checkpoint(nova, agent, api):
    with recovering_backend.mark_evacuated(OLD, CONTEXT):
        nova.spawn()
    with recovering_backend.mark_evacuated(INSTANCE, CONTEXT):
        nova.disk("disk.swap").cache(fetch_func=nova_backend.download, filename="swap_64", size=1)
    assert api.asked == []


def test_existing_disk_is_not_changed(nova, agent, api):
    made = nova.spawn()
    evacuate(nova)
    assert base_of(made)[0] == nova.base.name and api.asked == []


def test_evacuation_without_a_decision_url_uses_the_image(nova, agent):
    nova.conf.set_override("decision_url", "", group="acstor")
    assert base_of(evacuate(nova))[0] == nova.base.name


@pytest.mark.expect_log(NEW)
def test_older_checkpoint_is_used_when_the_newest_is_lost(nova, agent):
    def answer(request):
        if request.checkpoint_id == NEW:
            return control_wire.encode(control_wire.Failed("ChunkLost", "no holder has it"))
        return ATTACHED(request)

    agent.answers[control_wire.AttachCheckpoint] = answer
    assert base_of(evacuate(nova))[0] == f"{OLD}.qcow2"


LATE = scripted_agent.failed("DeadlineExceeded", "it did not arrive")


@pytest.mark.expect_log("is requested again")
def test_late_checkpoint_is_requested_again(nova, agent):
    nova.limit(checkpoint_retry_s=0.0)
    answers = iter([LATE, scripted_agent.failed("OSError", "no space left"), ATTACHED])
    agent.answers[control_wire.AttachCheckpoint] = lambda request: next(answers)(request)
    assert base_of(evacuate(nova))[0] == f"{NEW}.qcow2"


@pytest.mark.parametrize("recover", ["required", "preferred"])
def test_late_checkpoint_is_not_replaced_by_an_older_one_or_the_image(nova, agent, recover):
    nova.limit(checkpoint_s=-1.0)
    nova.conf.set_override("recover", recover, group="acstor")
    agent.answers[control_wire.AttachCheckpoint] = LATE
    with pytest.raises(nova_backend.CannotStartError, match="it did not arrive"):
        evacuate(nova)
    assert {one.checkpoint_id for one in asked(agent, control_wire.AttachCheckpoint)} == {NEW}
    assert not (nova.folder / INSTANCE / "disk").exists()


@pytest.mark.parametrize("disk_format", ["aki", "raw"])
def test_unsupported_image_fails_the_evacuation(nova, agent, disk_format):
    nova.image["disk_format"] = disk_format
    if disk_format == "raw":
        nova.conf.set_override("verify_glance_signatures", True, group="glance")
    with pytest.raises(nova_backend.CannotStartError, match="cannot be mirrored here"):
        evacuate(nova)
    assert not os.path.lexists(nova.base) and not asked(agent, control_wire.AttachCheckpoint)


def test_deactivated_image_can_be_recovered(nova, agent):
    nova.image["status"] = "deactivated"
    assert base_of(evacuate(nova))[0] == f"{NEW}.qcow2"
    assert os.readlink(nova.base) == str(nova.mirror)


def test_downloaded_image_is_used_as_backing_file(nova, agent):
    nova.base.parent.mkdir()
    nova.base.write_bytes(bytes(SIZE))
    evacuate(nova)
    [request] = asked(agent, control_wire.AttachCheckpoint)
    assert request.backing_file == str(nova.base) and not nova.base.is_symlink()


def test_lost_mirror_fails_the_evacuation(nova, agent):
    nova.base.parent.mkdir()
    nova.base.symlink_to(nova.mirror)
    agent.answers[control_wire.AttachImage] = scripted_agent.failed(
        "ChunkLost", "it is unavailable"
    )
    with pytest.raises(nova_backend.CannotStartError, match="it is unavailable"):
        evacuate(nova)


def away(nova, api):
    api.server.shutdown()
    api.server.server_close()


def refused(nova, api):
    api.status = 403
    api.answers[api.listed] = b'{"error": {"message": "you may not"}}'


def none(nova, api):
    api.answers[api.listed] = b'{"checkpoints": []}'


def nonsense(nova, api):
    api.answers[api.listed] = b'{"a":' * 100_000


def endless(nova, api):
    api.answers[api.listed] = b" " * (decision_client.MAX_ANSWER_BYTES + 1)


def too_many(nova, api):
    api.answers[api.listed] = json.dumps({"checkpoints": LISTED["checkpoints"] * 6}).encode()


FAULTS = {
    away: "Connection",
    refused: r"you may not \(HTTP 403\)",
    none: "checkpoints: the server has none",
    nonsense: "recursion",
    endless: "takes more than 1048576 bytes",
    too_many: "length <= 10",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_evacuation_without_a_checkpoint_fails_by_default(nova, agent, api, fault):
    fault(nova, api)
    with pytest.raises(nova_backend.CannotStartError, match=FAULTS[fault]):
        evacuate(nova)
    assert not (nova.folder / INSTANCE / "disk").exists()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.expect_log("starting from its image")
def test_evacuation_without_a_checkpoint_uses_the_image_if_preferred(nova, agent, api, fault):
    nova.conf.set_override("recover", "preferred", group="acstor")
    fault(nova, api)
    assert base_of(evacuate(nova))[0] == nova.base.name


def test_unreachable_agent_fails_the_evacuation(nova):
    with pytest.raises(nova_backend.CannotStartError, match="no answer from the agent"):
        evacuate(nova)


def test_failed_disk_creation_fails_the_evacuation(nova, agent, monkeypatch):
    def fail(*args, **more):
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint_disk.processutils, "execute", fail)
    with pytest.raises(nova_backend.CannotStartError, match="no space left"):
        evacuate(nova)


def test_live_migration_of_a_disk_on_a_checkpoint_is_refused(nova, agent):
    with pytest.raises(nova_backend.CannotStartError, match="Move the server then"):
        nova.spawn(filename=f"{NEW}.qcow2")


def test_start_of_a_disk_on_a_checkpoint_fetches_nothing(nova, agent, api):
    made = evacuate(nova)
    del agent.asked[:], api.asked[:]
    nova.spawn(filename=f"{NEW}.qcow2")
    assert base_of(made)[0] == f"{NEW}.qcow2" and agent.asked == api.asked == []


def test_agent_is_notified_of_a_power_off_on_a_checkpoint(nova, agent):
    agent.answers[control_wire.PowerOff] = scripted_agent.done({})
    evacuate(nova)
    host_context.notify_power_off(nova.host, INSTANCE)
    assert asked(agent, control_wire.PowerOff) == [control_wire.PowerOff(INSTANCE)]


def test_start_without_the_checkpoint_on_this_host_is_refused(nova, agent):
    made = evacuate(nova)
    agent.answers[control_wire.ListRestoredDisks] = scripted_agent.done({"disks": []})
    with pytest.raises(nova_backend.CannotStartError, match="on the host that recovered it"):
        made.libvirt_info("none")


def test_start_recreates_the_link_of_the_backing_image(nova, agent):
    made = evacuate(nova)
    shown = nova.folder / "mirror" / "disks" / f"{NEW}.qcow2"
    create = ["qemu-img", "create", "-q", "-f", "qcow2", "-u", "-F", "raw", "-b", nova.base]
    subprocess.run([*create, shown, str(SIZE)], check=True)
    nova.base.unlink()
    made.libvirt_info("none")
    assert os.readlink(nova.base) == str(nova.mirror)
    agent.answers[control_wire.AttachImage] = scripted_agent.failed("ChunkLost", "it is nowhere")
    with pytest.raises(nova_backend.CannotStartError, match="it is nowhere"):
        made.libvirt_info("none")


def marked(nova, agent):
    """Return a disk on the mirror, marked as possibly incomplete."""
    made = nova.spawn()
    recovery_marker.write(made.path, NEW)
    return made


def test_marked_disk_is_rebased_on_its_checkpoint_at_start(nova, agent):
    made = marked(nova, agent)
    made.libvirt_info("none")
    assert base_of(made)[0] == f"{NEW}.qcow2"
    made.libvirt_info("none")
    assert base_of(made)[0] == f"{NEW}.qcow2"


def test_marked_disk_does_not_start_when_the_rebase_fails(nova, agent, monkeypatch):
    made = marked(nova, agent)

    def fail(*args, **more):
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint_disk.processutils, "execute", fail)
    with pytest.raises(nova_backend.CannotStartError, match="may lack data of its checkpoint"):
        made.libvirt_info("none")


@pytest.mark.parametrize(
    ("how", "is_laid"), [(None, True), ((0, 0), True), ((1, 0), False), ((0, 1), False)]
)
def test_offline_snapshot_of_a_marked_disk_includes_its_checkpoint(nova, agent, how, is_laid):
    seen = []
    nova.stock.direct_snapshot = lambda self, *args: seen.append((base_of(self)[0], args))
    made = marked(nova, agent)
    in_flight = how and delta_snapshot.PendingSnapshot(None, bool(how[0]), bool(how[1]), None, None)
    token = delta_snapshot._pending_snapshot.set(in_flight)
    try:
        made.direct_snapshot("context", "name")
    finally:
        delta_snapshot._pending_snapshot.reset(token)
    assert seen == [(f"{NEW}.qcow2" if is_laid else nova.base.name, ("context", "name"))]


def test_snapshot_fails_when_a_marked_disk_cannot_be_rebased(nova, agent):
    nova.stock.direct_snapshot = lambda self: pytest.fail("a snapshot was made")
    made = marked(nova, agent)
    os.unlink(made.path)
    with pytest.raises(nova_backend.CannotStartError, match="may lack data of its checkpoint"):
        made.direct_snapshot()


def has_external_data(nova, path):
    more = ["-o", f"data_file={path}.data", "-b", nova.base, "-F", "raw"]
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *more, path, str(SIZE)], check=True)


def lies_elsewhere(nova, path):
    more = ["-u", "-b", "/etc/shadow", "-F", "raw"]
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *more, path, str(SIZE)], check=True)


def lies_on_nothing(nova, path):
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, str(SIZE)], check=True)


@pytest.mark.parametrize("altered", [has_external_data, lies_elsewhere, lies_on_nothing])
def test_altered_marked_disk_is_refused_unchanged(nova, agent, altered):
    made = marked(nova, agent)
    os.unlink(made.path)
    altered(nova, made.path)
    with open(made.path, "rb") as file:
        before = file.read()
    with pytest.raises(
        nova_backend.CannotStartError, match=r"external data|not an image in Nova's"
    ):
        made.libvirt_info("none")
    with open(made.path, "rb") as file:
        assert file.read() == before


def test_marked_disk_makes_a_server_unmovable(nova, agent):
    made = nova.spawn()
    assert recovered_disk.why_unmovable(nova.host, INSTANCE) == ""
    recovery_marker.write(made.path, NEW)
    assert f"checkpoint {NEW}" in recovered_disk.why_unmovable(nova.host, INSTANCE)
    with open(made.path + recovery_marker.ENDING, "w") as file:
        file.write("?")
    assert "it is unknown whether" in recovered_disk.why_unmovable(nova.host, INSTANCE)


def test_damaged_mark_prevents_a_start_and_keeps_the_disk(nova, agent):
    made = nova.spawn()
    with open(made.path + recovery_marker.ENDING, "w") as file:
        file.write("?")
    with pytest.raises(nova_backend.CannotStartError, match="may lack data of its checkpoint"):
        made.libvirt_info("none")
    checkpoint_disk.drop_unused(nova.host, set())
    assert not asked(agent, control_wire.DropDisk)


def test_restored_disk_is_kept_while_a_mark_names_it(nova, agent):
    made = marked(nova, agent)
    checkpoint_disk.drop_unused(nova.host, {INSTANCE})
    assert not asked(agent, control_wire.DropDisk)
    recovery_marker.remove(made.path)
    checkpoint_disk.drop_unused(nova.host, {INSTANCE})
    assert asked(agent, control_wire.DropDisk)


def test_start_fails_while_the_agent_is_unreachable(nova):
    with scripted_agent.running(nova.socket, nova.answers):
        made = evacuate(nova)
    nova.socket.unlink()
    with pytest.raises(nova_backend.CannotStartError, match="Is acstor-agent running"):
        made.libvirt_info("none")


def test_unused_restored_disk_is_dropped(nova, agent):
    made = evacuate(nova)
    checkpoint_disk.drop_unused(nova.host, set())
    assert not asked(agent, control_wire.DropDisk)
    os.rename(nova.folder / INSTANCE, nova.folder / f"{INSTANCE}_resize")
    checkpoint_disk.drop_unused(nova.host, set())
    assert not asked(agent, control_wire.DropDisk)
    os.unlink(nova.folder / f"{INSTANCE}_resize" / os.path.basename(made.path))
    checkpoint_disk.drop_unused(nova.host, set())
    assert asked(agent, control_wire.DropDisk) == [control_wire.DropDisk(NEW)]


def test_restored_disk_is_kept_while_a_server_disk_is_unreadable(nova, agent, tmp_path):
    checkpoint_disk.drop_unused(nova.host, {INSTANCE})  # its file system is not mounted
    (nova.folder / INSTANCE / "disk").mkdir(parents=True)  # unreadable
    checkpoint_disk.drop_unused(nova.host, set())
    assert not asked(agent, control_wire.DropDisk)
    (nova.folder / INSTANCE / "disk").rmdir()
    checkpoint_disk.drop_unused(nova.host, set())
    assert asked(agent, control_wire.DropDisk)


def test_restored_disk_in_progress_is_kept(nova, agent, monkeypatch):
    monkeypatch.setattr(checkpoint_disk, "_disks_in_progress", {NEW})
    checkpoint_disk.drop_unused(nova.host, set())
    assert not asked(agent, control_wire.DropDisk)


def test_drop_unused_ignores_an_unreachable_agent(nova):
    checkpoint_disk.drop_unused(nova.host, set())


def test_rebuild_hook_marks_only_evacuations():
    seen = []

    def stock(self, context, instance, **kwargs):
        seen.append(recovering_backend._evacuated.get())

    instance = types.SimpleNamespace(uuid=INSTANCE)
    ours = recovering_backend.wrap_rebuild(stock, lambda: True)
    ours(None, context=CONTEXT, instance=instance, evacuate=True)
    ours(None, context=CONTEXT, instance=instance, evacuate=False)
    recovering_backend.wrap_rebuild(stock, lambda: False)(None, CONTEXT, instance, evacuate=True)
    assert seen == [(INSTANCE, CONTEXT), None, None]
    assert recovering_backend._evacuated.get() is None


def test_old_agent_refuses_to_list_restored_disks(nova):
    failed = scripted_agent.failed("RemoteProtocolError", "what is that")
    with scripted_agent.running(nova.socket, {control_wire.ListRestoredDisks: failed}):
        with pytest.raises(errors.AgentRefused):
            agent_client.AgentClient(str(nova.socket), 5.0).list_recovered()
