# SPDX-License-Identifier: Apache-2.0
"""The backend on a fake of Nova's class; the functional tests use the real one.

Covers links, fallbacks with their reasons, and waits at start.
"""

import dataclasses
import os
import time
import types

import pytest

from acstor_common import errors
from acstor_common.wire import control_wire
from acstor_nova import fallbacks
from acstor_nova import host_context
from acstor_nova import imagebackend
from acstor_nova import mirror_link
from tests.fakes import nova_backend
from tests.fakes import scripted_agent

IMAGE, SIZE, DOWNLOADED = nova_backend.IMAGE, nova_backend.SIZE, nova_backend.DOWNLOADED
INSTANCE = nova_backend.INSTANCE
R = control_wire.Fallback


@pytest.fixture
def nova(tmp_path):
    return nova_backend.Nova(tmp_path)


@pytest.fixture
def agent(nova):
    with scripted_agent.running(nova.socket, nova.answers) as running:
        yield running


def test_disk_is_based_on_the_mirror_without_a_download(nova, agent):
    made = nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)
    assert nova.inspected == [(nova_backend.IMAGE, str(nova.mirror))]
    assert agent.asked == [control_wire.AttachImage(IMAGE, mirror_link.HEAD_BYTES)]
    assert made.libvirt_info("none").driver_cache == "writeback"
    assert not nova.host.fallbacks.counts_by_reason


def test_attach_passes_glances_current_hash_even_with_an_existing_link(nova, agent):
    nova.image |= {"os_hash_algo": "sha512", "os_hash_value": "ab" * 64}
    nova.spawn()
    nova.image["os_hash_value"] = "cd" * 64
    nova.spawn()
    reported = [
        one.os_hash_value for one in agent.asked if isinstance(one, control_wire.AttachImage)
    ]
    assert reported == ["ab" * 64, "cd" * 64]
    nova.image = None  # without Glance a cached image still boots
    nova.spawn()
    assert agent.asked[-1] == control_wire.AttachImage(IMAGE, mirror_link.HEAD_BYTES)


def test_start_attaches_with_the_hash_that_the_disk_was_made_with(nova, agent):
    nova.image |= {"os_hash_algo": "sha512", "os_hash_value": "ab" * 64}
    made = nova.spawn()
    assert len(made._instance.system_metadata[imagebackend.METADATA_KEY]) < 255
    nova.image["os_hash_value"] = "cd" * 64
    made.libvirt_info("none")
    assert agent.asked[-1].os_hash_value == "ab" * 64
    made._instance.system_metadata = {imagebackend.METADATA_KEY: "damaged"}
    made.libvirt_info("none")
    assert (agent.asked[-1].os_hash_algo, agent.asked[-1].os_hash_value) == ("", "")


def test_start_tells_the_agent_the_profile_of_the_flavor(nova, agent):
    made = nova.spawn()
    specs = {"acstor:boot_profile": "db"}
    made._instance.flavor = types.SimpleNamespace(extra_specs=specs)
    made.libvirt_info("none")
    assert (agent.asked[-1].instance_id, agent.asked[-1].profile) == (INSTANCE, "db")
    specs["acstor:boot_profile"] = "metadata:role"
    made._instance.metadata = {"role": "web"}
    made.libvirt_info("none")
    assert agent.asked[-1].profile == "metadata:role=web"


def test_instance_without_a_profile_starts_as_before(nova, agent):
    made = nova.spawn()
    for flavor in (None, types.SimpleNamespace(extra_specs={}), "of an unknown kind"):
        made._instance.flavor = flavor
        made.libvirt_info("none")
        assert agent.asked[-1] == control_wire.AttachImage(IMAGE, mirror_link.HEAD_BYTES)


def test_older_agent_is_asked_again_without_the_profile(nova, agent):
    refuse = scripted_agent.failed("RemoteProtocolError", "unknown field instance_id")
    made = nova.spawn()
    specs = {"acstor:boot_profile": "db"}
    made._instance.flavor = types.SimpleNamespace(extra_specs=specs)
    attach = nova.answers[control_wire.AttachImage]
    nova.answers[control_wire.AttachImage] = lambda asked: (
        refuse(asked) if asked.profile else attach(asked)
    )
    made.libvirt_info("none")
    assert [one.profile for one in agent.asked[-2:]] == ["db", ""]


@pytest.mark.parametrize("is_in_glance", [True, False])
def test_disk_of_a_qcow2_image_is_based_on_its_raw_view(nova, agent, is_in_glance):
    agent.answers[control_wire.AttachImage] = nova_backend.attached("qcow2", SIZE // 3)
    nova.image |= {"disk_format": "qcow2", "size": SIZE // 3}
    if not is_in_glance:
        nova.image = None
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)
    assert nova.inspected == [(nova_backend.IMAGE, str(nova.mirror))]
    assert not nova.host.fallbacks.counts_by_reason


def test_disks_without_an_image_are_made_by_nova(nova):
    made = nova.disk("disk.swap")
    made.cache(fetch_func=nova_backend.download, filename="swap_64", size=1, safe=True)
    assert (nova.folder / "_base/swap_64").read_bytes() == DOWNLOADED
    assert made.libvirt_info("none").driver_cache == "none"


def test_disk_of_a_converted_image_is_based_on_its_raw_view(nova, agent):
    agent.answers[control_wire.AttachImage] = nova_backend.attached("qcow2", SIZE // 5)
    nova.image |= {"disk_format": "vmdk", "size": SIZE // 3}
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)
    assert nova.inspected == [(nova_backend.IMAGE, str(nova.mirror))]
    assert not nova.host.fallbacks.counts_by_reason


@pytest.mark.parametrize("kind", ["ChunkMissing", "ChunkRefused"])
@pytest.mark.parametrize("disk_format", ["vmdk", "vhd", "vhdx", "vdi"])
@pytest.mark.expect_log("falls back to Nova's download")
def test_unconverted_image_is_downloaded(nova, agent, disk_format, kind):
    failed = control_wire.encode(control_wire.Failed(kind, "nothing of it is there"))
    agent.answers[control_wire.AttachImage] = lambda request: failed
    nova.image |= {"disk_format": disk_format}
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED
    assert nova.host.fallbacks.counts_by_reason == {R.DISK_FORMAT: 1}


OTHER_FORMAT = {"disk_format": "ploop"}
ENCRYPTED = {"properties": {"os_encrypt_format": "luks"}}


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (OTHER_FORMAT, R.DISK_FORMAT),
        ({"status": "deactivated"}, R.NOT_ACTIVE),
        (ENCRYPTED, R.ENCRYPTED),
        ({"size": SIZE + 1}, R.RECORD_DIFFERS),
        ({"disk_format": "qcow2"}, R.RECORD_DIFFERS),
    ],
)
@pytest.mark.expect_log("falls back to Nova's download")
def test_ineligible_image_is_downloaded(nova, agent, image, reason):
    nova.image |= image
    made = nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED
    assert nova.host.fallbacks.counts_by_reason == {reason: 1}
    assert agent.asked[-1] == control_wire.CountFallback(reason, 1)
    assert made.libvirt_info("none").driver_cache == "none"


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({}, {"trusted_certs": ["a certificate"]}, R.SIGNED),
        ({"verify_glance_signatures": True}, {}, R.SIGNED),
        ({}, {"filename": "another-name"}, R.OTHER_NAME),
    ],
)
@pytest.mark.expect_log("falls back to Nova's download")
def test_ineligible_request_is_downloaded(nova, agent, changes, options, reason):
    for name, value in changes.items():
        nova.conf.set_override(name, value, group="glance")
    nova.spawn(**options)
    assert nova.host.fallbacks.counts_by_reason == {reason: 1}
    assert control_wire.AttachImage(IMAGE, mirror_link.HEAD_BYTES) not in agent.asked


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("ChunkMissing", R.NOT_MAPPED),
        ("ChunkRefused", R.AGENT_REFUSED),
        ("SourceUnreachable", R.AGENT_REFUSED),
    ],
)
@pytest.mark.expect_log("no such thing")
def test_image_refused_by_the_agent_is_downloaded(nova, agent, kind, reason):
    agent.answers[control_wire.AttachImage] = scripted_agent.failed(kind, "no such thing")
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED
    assert nova.host.fallbacks.counts_by_reason == {reason: 1}


@pytest.mark.expect_log(r"\[agent-unreachable, 1 since the start\]")
@pytest.mark.expect_log(r"\[agent-unreachable, 2 since the start\]")
def test_images_are_downloaded_without_an_agent_and_reported_later(nova):
    for _ in range(2):
        nova.spawn()
        assert nova.base.read_bytes() == DOWNLOADED
        nova.base.unlink()
    with scripted_agent.running(nova.socket, nova.answers) as agent:
        nova.spawn()
    assert agent.asked[-1] == control_wire.CountFallback(R.AGENT_UNREACHABLE, 2)
    assert os.readlink(nova.base) == str(nova.mirror)


@pytest.mark.expect_log(r"\[agent-unreachable, 2 since the start\]")
@pytest.mark.allow_log("agent-unreachable")
def test_fallbacks_are_reported_when_the_agent_is_back(nova):
    nova.host.fallbacks = fallbacks.Fallbacks(0.05)
    for _ in range(2):
        nova.host.record_fallback(IMAGE, R.AGENT_UNREACHABLE, "it is away")
    time.sleep(0.2)  # reports are retried
    nova.answers[control_wire.CountFallback] = scripted_agent.done()
    with scripted_agent.running(nova.socket, nova.answers) as agent:
        ends_s = time.monotonic() + 10
        while not agent.asked and time.monotonic() < ends_s:
            time.sleep(0.02)
        assert agent.asked == [control_wire.CountFallback(R.AGENT_UNREACHABLE, 2)]


@pytest.mark.expect_log(r"\[holes-unknown, 1 since the start\]")
@pytest.mark.expect_log(r"\[disk-format, 1 since the start\]")
def test_reason_unknown_to_the_agent_does_not_block_other_reports(nova, agent):
    def answer(request):
        if request.reason == R.HOLES_UNKNOWN:
            return scripted_agent.failed("RemoteProtocolError", "no such reason")(request)
        return scripted_agent.done()(request)

    agent.answers[control_wire.CountFallback] = answer
    nova.host.record_fallback(IMAGE, R.HOLES_UNKNOWN, "no map of holes")
    nova.host.record_fallback(IMAGE, R.DISK_FORMAT, "its format is vmdk")
    assert agent.asked[-1] == control_wire.CountFallback(R.DISK_FORMAT, 1)
    agent.answers[control_wire.CountFallback] = scripted_agent.done()
    nova.host.fallbacks.report(agent=nova.host.agent)
    nova.host.fallbacks.report(agent=nova.host.agent)
    assert agent.asked.count(control_wire.CountFallback(R.DISK_FORMAT, 1)) == 1
    assert agent.asked[-1] == control_wire.CountFallback(R.HOLES_UNKNOWN, 1)


@pytest.mark.expect_log("agent-unreachable")
def test_hanging_agent_is_waited_for_once(nova, agent):
    agent.answers[control_wire.AttachImage] = lambda request: b""
    nova.limit(agent_answer_s=0.2)
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED
    assert agent.asked == [control_wire.AttachImage(IMAGE, mirror_link.HEAD_BYTES)]


@pytest.mark.expect_log("mirror-unreadable")
def test_unreadable_mirror_is_not_linked(nova, agent):
    nova.mirror.unlink()
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED


@pytest.mark.expect_log("mirror-lost")
def test_lost_linked_mirror_is_replaced_without_reading_it(nova, agent):
    nova.spawn()
    agent.answers[control_wire.AttachImage] = scripted_agent.failed(
        "DeadlineExceeded", "30 s are over"
    )
    nova.mirror.unlink()
    os.mkfifo(nova.mirror)  # opening it would block
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED


def test_linked_mirror_is_used_without_an_agent(nova):
    with scripted_agent.running(nova.socket, nova.answers):
        nova.spawn()
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)


def test_refusal_by_novas_inspection_is_raised(nova, agent):
    def refuse(image_id, path):
        raise nova_backend.CannotStartError("not what it says")

    nova.host.nova = dataclasses.replace(nova.host.nova, inspect=refuse)
    with pytest.raises(nova_backend.CannotStartError):
        nova.spawn()
    assert not os.path.lexists(nova.base)


def test_image_deleted_in_glance_is_served_by_the_agent(nova, agent):
    nova.image = None
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)


@pytest.mark.expect_log("mirror-lost")
def test_mirror_lost_during_disk_creation_is_downloaded(nova, agent):
    nova.stock.fails = 1
    nova.host.nova = dataclasses.replace(nova.host.nova, inspect=lambda *_: nova.mirror.unlink())
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED


def test_other_failures_of_disk_creation_are_raised(nova, agent):
    nova.stock.fails = 1
    with pytest.raises(RuntimeError, match="qemu-img failed"):
        nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)


def test_dangling_link_is_repaired_by_a_spawn(nova, agent):
    nova.base.parent.mkdir()
    nova.base.symlink_to(f"/former/mount/images/{IMAGE}.raw")
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)


@pytest.mark.parametrize("left", ["nothing", "dangling"])
def test_start_repairs_a_removed_or_dangling_link(nova, agent, left):
    made = nova.spawn()
    nova.base.unlink()
    if left == "dangling":
        nova.base.symlink_to(f"/former/mount/images/{IMAGE}.raw")
    assert made.libvirt_info("none").driver_cache == "writeback"
    assert os.readlink(nova.base) == str(nova.mirror)


def test_start_fails_without_an_agent(nova):
    with scripted_agent.running(nova.socket, nova.answers):
        made = nova.spawn()
    nova.socket.unlink()
    with pytest.raises(
        nova_backend.CannotStartError, match=r"no answer from the agent.*acstor-agent running"
    ):
        made.libvirt_info("none")


def test_start_continues_when_the_agent_appears(nova, monkeypatch):
    with scripted_agent.running(nova.socket, nova.answers):
        made = nova.spawn()
    nova.socket.unlink()
    nova.limit(agent_start_s=60.0)
    later = []
    start = lambda _: later.append(scripted_agent.ScriptedAgent(nova.socket, nova.answers))  # noqa: E731
    # Replaces the module's name only: threads of oslo.messaging also call time.sleep.
    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=start)
    monkeypatch.setattr(host_context, "time", clock)
    made.libvirt_info("none")
    later[0].close()
    assert len(later) == 1


@pytest.mark.parametrize(
    ("by_nova", "mode"),
    [([], "writeback"), (["block=none"], "writeback"), (["file=none"], "given")],
)
def test_configured_cache_mode_is_used(nova, agent, by_nova, mode):
    nova.conf.set_override("disk_cachemodes", by_nova, group="libvirt")
    assert nova.spawn().libvirt_info("given").driver_cache == mode


@pytest.mark.parametrize(("by_nova", "io"), [([], None), (["file=none"], "native")])
def test_native_io_is_not_used_with_the_page_cache(nova, agent, by_nova, io):
    """Nova chooses native I/O on hosts that preallocate disks."""
    nova.conf.set_override("disk_cachemodes", by_nova, group="libvirt")
    nova.stock.io = "native"
    assert nova.spawn().libvirt_info("none").driver_io == io


@pytest.mark.parametrize(
    ("what", "policies"),
    [("pause", {"error_policy": "stop", "rerror_policy": "stop"}), ("nova", {})],
)
def test_error_policy_follows_the_configuration(nova, agent, what, policies):
    nova.conf.set_override("disk_errors", what, group="acstor")
    driver = nova.spawn().libvirt_info("none").format_dom().find("driver")
    assert driver.attrib == {"name": "qemu"} | policies


def test_precache_links_and_pre_seeds_the_image(nova, agent):
    for is_new in (True, False):
        assert imagebackend.precache(nova.host, pytest.fail, None, IMAGE) is is_new
    assert os.readlink(nova.base) == str(nova.mirror)
    assert control_wire.PreSeed in map(type, agent.asked)


def test_precache_fails_if_the_agent_cannot_pre_seed(nova, agent):
    agent.answers[control_wire.PreSeed] = scripted_agent.failed("Unusable", "no space to pin it")
    with pytest.raises(errors.AgentRefused, match="no space to pin it"):
        imagebackend.precache(nova.host, pytest.fail, None, IMAGE)


@pytest.mark.expect_log("disk-format")
def test_precache_of_an_ineligible_image_is_left_to_nova(nova, agent):
    nova.image |= OTHER_FORMAT
    assert imagebackend.precache(nova.host, lambda context, image_id: True, None, IMAGE)
    nova.base.write_bytes(DOWNLOADED)
    assert not imagebackend.precache(nova.host, lambda context, image_id: False, None, IMAGE)


def test_power_off_is_reported_for_instances_on_mirrors_only(nova, agent):
    nova.answers[control_wire.PowerOff] = scripted_agent.done({"processes": 1})
    nova.spawn()
    del agent.asked[:]
    host_context.notify_power_off(nova.host, INSTANCE)
    host_context.notify_power_off(nova.host, INSTANCE, is_cancelled=True)
    assert agent.asked == [
        control_wire.PowerOff(INSTANCE),
        control_wire.PowerOff(INSTANCE, is_cancelled=True),
    ]
    nova.base.unlink()
    nova.base.write_bytes(bytes(SIZE))
    host_context.notify_power_off(nova.host, INSTANCE)
    host_context.notify_power_off(nova.host, "no-instance")
    assert len(agent.asked) == 2


def test_failing_power_off_report_does_not_block_the_power_off(nova, caplog):
    caplog.set_level("INFO")
    nova.limit(power_off_s=0.2)
    answers = (lambda request: b"", scripted_agent.failed("Unusable", "too many"))
    with scripted_agent.running(nova.socket, nova.answers) as agent:
        nova.spawn()
        for answer in answers:
            agent.answers[control_wire.PowerOff] = answer
            host_context.notify_power_off(nova.host, INSTANCE)
    host_context.notify_power_off(nova.host, INSTANCE)
    assert caplog.text.count(f"instance {INSTANCE}: its reads may delay its power-off") == 3
