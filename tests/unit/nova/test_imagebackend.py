# SPDX-License-Identifier: Apache-2.0
"""The backend in front of a class that keeps the contract of Nova's; the real one is functional.

Here: what is linked, what falls back and why, what starts wait for.
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


def test_disk_lies_on_the_mirror_and_nothing_is_downloaded(nova, agent):
    made = nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)
    assert nova.inspected == [(nova_backend.IMAGE, str(nova.mirror))]
    assert agent.asked == [control_wire.AttachImage(IMAGE, mirror_link.HEAD_BYTES)]
    assert made.libvirt_info("none").driver_cache == "writeback"
    assert not nova.host.fallbacks.counts_by_reason


def test_agent_is_told_the_hash_that_glance_has_now_also_where_the_link_is_there(nova, agent):
    nova.image |= {"os_hash_algo": "sha512", "os_hash_value": "ab" * 64}
    nova.spawn()
    nova.image["os_hash_value"] = "cd" * 64
    nova.spawn()
    told = [one.os_hash_value for one in agent.asked if isinstance(one, control_wire.AttachImage)]
    assert told == ["ab" * 64, "cd" * 64]
    nova.image = None  # Glance does not answer: a cached image boots all the same
    nova.spawn()
    assert agent.asked[-1] == control_wire.AttachImage(IMAGE, mirror_link.HEAD_BYTES)


def test_start_asks_for_the_bytes_that_the_disk_was_made_on(nova, agent):
    nova.image |= {"os_hash_algo": "sha512", "os_hash_value": "ab" * 64}
    made = nova.spawn()
    assert len(made._instance.system_metadata[imagebackend.NOTE]) < 255
    nova.image["os_hash_value"] = "cd" * 64
    made.libvirt_info("none")
    assert agent.asked[-1].os_hash_value == "ab" * 64
    made._instance.system_metadata = {imagebackend.NOTE: "damaged"}
    made.libvirt_info("none")
    assert agent.asked[-1] == control_wire.AttachImage(IMAGE, mirror_link.HEAD_BYTES)


@pytest.mark.parametrize("is_in_glance", [True, False])
def test_disk_of_a_qcow2_image_lies_on_its_raw_view(nova, agent, is_in_glance):
    agent.answers[control_wire.AttachImage] = nova_backend.attached("qcow2", SIZE // 3)
    nova.image |= {"disk_format": "qcow2", "size": SIZE // 3}
    if not is_in_glance:
        nova.image = None
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)
    assert nova.inspected == [(nova_backend.IMAGE, str(nova.mirror))]
    assert not nova.host.fallbacks.counts_by_reason


def test_disks_without_an_image_are_made_as_ever(nova):
    made = nova.disk("disk.swap")
    made.cache(fetch_func=nova_backend.download, filename="swap_64", size=1, safe=True)
    assert (nova.folder / "_base/swap_64").read_bytes() == DOWNLOADED
    assert made.libvirt_info("none").driver_cache == "none"


def test_disk_of_an_image_that_was_converted_lies_on_its_raw_view(nova, agent):
    agent.answers[control_wire.AttachImage] = nova_backend.attached("qcow2", SIZE // 5)
    nova.image |= {"disk_format": "vmdk", "size": SIZE // 3}
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)
    assert nova.inspected == [(nova_backend.IMAGE, str(nova.mirror))]
    assert not nova.host.fallbacks.counts_by_reason


@pytest.mark.parametrize("kind", ["ChunkMissing", "ChunkRefused"])
@pytest.mark.parametrize("disk_format", ["vmdk", "vhd", "vhdx", "vdi"])
@pytest.mark.expect_log("falls back to Nova's download")
def test_image_that_was_not_converted_is_downloaded(nova, agent, disk_format, kind):
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
def test_image_that_is_not_eligible_is_downloaded(nova, agent, image, reason):
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
def test_request_that_is_not_eligible_is_downloaded(nova, agent, changes, options, reason):
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
def test_image_that_the_agent_refuses_is_downloaded(nova, agent, kind, reason):
    agent.answers[control_wire.AttachImage] = scripted_agent.failed(kind, "no such thing")
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED
    assert nova.host.fallbacks.counts_by_reason == {reason: 1}


@pytest.mark.expect_log(r"\[agent-unreachable, 1 since the start\]")
@pytest.mark.expect_log(r"\[agent-unreachable, 2 since the start\]")
def test_without_an_agent_images_are_downloaded_and_the_count_is_told_later(nova):
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
def test_agent_that_is_back_is_told_without_another_image(nova):
    nova.host.fallbacks = fallbacks.Fallbacks(0.05)
    for _ in range(2):
        nova.host.record_fallback(IMAGE, R.AGENT_UNREACHABLE, "it is away")
    time.sleep(0.2)  # it is asked again and again
    nova.answers[control_wire.CountFallback] = scripted_agent.done()
    with scripted_agent.running(nova.socket, nova.answers) as agent:
        ends_s = time.monotonic() + 10
        while not agent.asked and time.monotonic() < ends_s:
            time.sleep(0.02)
        assert agent.asked == [control_wire.CountFallback(R.AGENT_UNREACHABLE, 2)]


@pytest.mark.expect_log(r"\[holes-unknown, 1 since the start\]")
@pytest.mark.expect_log(r"\[disk-format, 1 since the start\]")
def test_reason_that_an_older_agent_refuses_keeps_no_other_from_being_told(nova, agent):
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
def test_agent_that_hangs_is_waited_for_once(nova, agent):
    agent.answers[control_wire.AttachImage] = lambda request: b""
    nova.limit(agent_answer_s=0.2)
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED
    assert agent.asked == [control_wire.AttachImage(IMAGE, mirror_link.HEAD_BYTES)]


@pytest.mark.expect_log("mirror-unreadable")
def test_mirror_that_cannot_be_read_is_not_linked(nova, agent):
    nova.mirror.unlink()
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED


@pytest.mark.expect_log("mirror-lost")
def test_linked_mirror_whose_beginning_is_nowhere_is_replaced_unread(nova, agent):
    nova.spawn()
    agent.answers[control_wire.AttachImage] = scripted_agent.failed(
        "DeadlineExceeded", "30 s are over"
    )
    nova.mirror.unlink()
    os.mkfifo(nova.mirror)  # who opens it waits for ever
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED


def test_linked_mirror_is_used_while_the_agent_starts(nova):
    with scripted_agent.running(nova.socket, nova.answers):
        nova.spawn()
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)


def test_nova_s_own_refusal_is_passed_on(nova, agent):
    def refuse(image_id, path):
        raise nova_backend.CannotStartError("not what it says")

    nova.host.nova = dataclasses.replace(nova.host.nova, inspect=refuse)
    with pytest.raises(nova_backend.CannotStartError):
        nova.spawn()
    assert not os.path.lexists(nova.base)


def test_image_that_glance_forgot_is_served_while_the_agent_knows_it(nova, agent):
    nova.image = None
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)


@pytest.mark.expect_log("mirror-lost")
def test_mirror_that_is_lost_while_the_disk_is_made_is_downloaded(nova, agent):
    nova.stock.fails = 1
    nova.host.nova = dataclasses.replace(nova.host.nova, inspect=lambda *_: nova.mirror.unlink())
    nova.spawn()
    assert nova.base.read_bytes() == DOWNLOADED


def test_failure_that_is_not_the_mirror_s_is_passed_on(nova, agent):
    nova.stock.fails = 1
    with pytest.raises(RuntimeError, match="qemu-img failed"):
        nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)


def test_dangling_link_is_mended_by_a_spawn(nova, agent):
    nova.base.parent.mkdir()
    nova.base.symlink_to(f"/former/mount/images/{IMAGE}.raw")
    nova.spawn()
    assert os.readlink(nova.base) == str(nova.mirror)


@pytest.mark.parametrize("left", ["nothing", "dangling"])
def test_start_mends_the_link_that_somebody_removed(nova, agent, left):
    made = nova.spawn()
    nova.base.unlink()
    if left == "dangling":
        nova.base.symlink_to(f"/former/mount/images/{IMAGE}.raw")
    assert made.libvirt_info("none").driver_cache == "writeback"
    assert os.readlink(nova.base) == str(nova.mirror)


def test_start_waits_for_the_agent_and_then_fails(nova):
    with scripted_agent.running(nova.socket, nova.answers):
        made = nova.spawn()
    nova.socket.unlink()
    with pytest.raises(
        nova_backend.CannotStartError, match=r"no answer from the agent.*acstor-agent running"
    ):
        made.libvirt_info("none")


def test_start_goes_on_when_the_agent_comes(nova, monkeypatch):
    with scripted_agent.running(nova.socket, nova.answers):
        made = nova.spawn()
    nova.socket.unlink()
    nova.limit(agent_start_s=60.0)
    later = []
    start = lambda _: later.append(scripted_agent.ScriptedAgent(nova.socket, nova.answers))  # noqa: E731
    # In place of the module: time.sleep itself is also called by the threads of oslo.messaging.
    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=start)
    monkeypatch.setattr(host_context, "time", clock)
    made.libvirt_info("none")
    later[0].close()
    assert len(later) == 1


@pytest.mark.parametrize(
    ("by_nova", "mode"),
    [([], "writeback"), (["block=none"], "writeback"), (["file=none"], "given")],
)
def test_cachemode_is_the_operator_s(nova, agent, by_nova, mode):
    nova.conf.set_override("disk_cachemodes", by_nova, group="libvirt")
    assert nova.spawn().libvirt_info("given").driver_cache == mode


@pytest.mark.parametrize(("by_nova", "io"), [([], None), (["file=none"], "native")])
def test_native_io_is_not_used_with_the_page_cache_which_libvirt_refuses(nova, agent, by_nova, io):
    """Nova chooses native I/O on hosts that preallocate disks."""
    nova.conf.set_override("disk_cachemodes", by_nova, group="libvirt")
    nova.stock.io = "native"
    assert nova.spawn().libvirt_info("none").driver_io == io


@pytest.mark.parametrize(
    ("what", "policies"),
    [("pause", {"error_policy": "stop", "rerror_policy": "stop"}), ("nova", {})],
)
def test_guest_whose_disk_fails_is_paused_or_told_as_the_operator_likes(
    nova, agent, what, policies
):
    nova.conf.set_override("disk_errors", what, group="acstor")
    driver = nova.spawn().libvirt_info("none").format_dom().find("driver")
    assert driver.attrib == {"name": "qemu"} | policies


def test_request_to_cache_an_image_links_and_pre_seeds(nova, agent):
    for is_new in (True, False):
        assert imagebackend.precache(nova.host, pytest.fail, None, IMAGE) is is_new
    assert os.readlink(nova.base) == str(nova.mirror)
    assert control_wire.PreSeed in map(type, agent.asked)


def test_request_to_cache_an_image_fails_if_the_agent_cannot_pre_seed_it(nova, agent):
    agent.answers[control_wire.PreSeed] = scripted_agent.failed("Unusable", "no space to pin it")
    with pytest.raises(errors.AgentRefused, match="no space to pin it"):
        imagebackend.precache(nova.host, pytest.fail, None, IMAGE)


@pytest.mark.expect_log("disk-format")
def test_request_to_cache_what_is_not_eligible_is_nova_s(nova, agent):
    nova.image |= OTHER_FORMAT
    assert imagebackend.precache(nova.host, lambda context, image_id: True, None, IMAGE)
    nova.base.write_bytes(DOWNLOADED)
    assert not imagebackend.precache(nova.host, lambda context, image_id: False, None, IMAGE)


def test_agent_is_told_of_an_instance_that_is_switched_off_if_it_lies_on_a_mirror(nova, agent):
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


def test_agent_that_hangs_refuses_or_is_away_keeps_no_instance_on(nova, caplog):
    caplog.set_level("INFO")
    nova.limit(power_off_s=0.2)
    answers = (lambda request: b"", scripted_agent.failed("Unusable", "too many"))
    with scripted_agent.running(nova.socket, nova.answers) as agent:
        nova.spawn()
        for answer in answers:
            agent.answers[control_wire.PowerOff] = answer
            host_context.notify_power_off(nova.host, INSTANCE)
    host_context.notify_power_off(nova.host, INSTANCE)
    assert caplog.text.count(f"instance {INSTANCE}: its reads may delay its end") == 3
