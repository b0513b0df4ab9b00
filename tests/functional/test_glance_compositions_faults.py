# SPDX-License-Identifier: Apache-2.0
"""Flattens that fail midway: an incomplete image never becomes active.

After each test the image is queued again, and can be filled in another way.

"""

import contextlib
import json
import signal
import time

import pytest

from acstor_common.disks import disk_delta
from tests.lab import runs
from tests.lab import tiers
from tests.lab import tuned
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import changed_disks
from tests.lab.openstack import image_stores
from tests.lab.openstack import ini
from tests.lab.openstack import uploads

KIB, MIB = 1 << 10, 1 << 20
DATA = disk_delta.ExtentKind.DATA
TIMEOUT_S = 1.5
STILL_S = 12 * TIMEOUT_S
said = image_stores.said
BASE = changed_disks.some_base(24 * MIB)
DISK = changed_disks.Disk(BASE, 32 * MIB, [disk_delta.Extent(20 * MIB, 2 * MIB, DATA)])
"""Most of the base precedes its change: Glance has a part of it before the change arrives."""
LATE = changed_disks.Disk(BASE, 32 * MIB, [disk_delta.Extent(0, 2 * MIB, DATA)])
"""Most of the base follows its change: it is read after the whole body arrived."""
HALF = -MIB
"""Where bodies are cut: before half of the bytes of DISK's change, and the trailer."""


@pytest.fixture(scope="module", params=tiers.first_now(["fs", "s3"]))
def into(request, all_stores, tmp_path_factory):
    """Yield a sender whose images go into a store, and a gateway with short time-outs."""
    all_stores.start()
    default = {"glance_store": {"default_backend": request.param}}
    with all_stores.lab.glance.changed(ini.merged(all_stores.stores(), default)):
        gateway = acstor_gateway.Gateway(
            all_stores.lab,
            tmp_path_factory.mktemp(request.param),
            constants={tuned.FLATTEN_JOBS: 2, tuned.GATEWAY_TIMEOUT_S: TIMEOUT_S},
        )
        gateway.start()
        try:
            gateway.wait_ready()
            yield changed_disks.Sender(all_stores, gateway)
        finally:
            gateway.stop()


@pytest.fixture
def sender(into):
    """The same sender with all services up and no request in flight."""
    into.place.start_stores()
    into.gateway.start()
    into.gateway.wait_ready()
    wait_idle(into)
    return into


@pytest.fixture
def base(sender):
    return sender.place.upload("s3", BASE)


def wait_idle(sender):
    runs.wait_for(
        lambda: sender.gateway.counted("flatten_jobs_in_flight") == 0,
        30,
        "the end of all compositions",
        sender.gateway.log,
    )


def check_not_whole(sender, image_id):
    """Check that an image is queued again and accepts an upload in Nova's own way."""
    sender.wait_status(image_id, "queued")
    wait_idle(sender)
    assert sender.status(image_id) == "queued"
    whole = sender.place.upload("fs", changed_disks.some_base(MIB), name="another")
    assert sender.status(whole) == "active"
    put = {"data": iter([b"x" * KIB]), "headers": {"Content-Type": "application/octet-stream"}}
    answer = sender.place.ask("tenant", "PUT", f"/v2/images/{image_id}/file", **put)
    assert (answer.status_code, sender.record(image_id)["size"]) == (204, KIB)


def begun(sender, link, stream, image_id):
    """Send the first half of a body, and wait until Glance has begun to take the image."""
    link.sendall(stream[:HALF])
    sender.wait_status(image_id, "saving")


@contextlib.contextmanager
def half_sent(sender, base):
    """Send the first half of a body that needs the base late; yield image, link and the rest."""
    image_id, stream = sender.queued("raw"), LATE.stream(base)
    with sender.slowly(image_id, len(stream), "raw") as link:
        link.sendall(stream[:HALF])
        time.sleep(2.0)  # the read-ahead is done
        yield image_id, link, stream[HALF:]


def error_of(answer: str) -> dict:
    """Return the error of a response, from its status or its last line."""
    error: dict = json.loads(answer.splitlines()[-1])["error"]
    return error


# The client


def test_disconnect_of_the_client_midway_leaves_no_image(sender, base):
    image_id, stream = sender.queued("raw"), DISK.stream(base)
    before = sender.counted("client")
    with sender.slowly(image_id, len(stream), "raw") as link:
        begun(sender, link, stream, image_id)
    check_not_whole(sender, image_id)
    assert sender.counted("client") == before + 1


def test_disconnect_of_the_client_before_the_response_leaves_no_image(sender, base):
    """The body is complete; the gateway still reads the base, from a store that hangs."""
    before = broken(sender)
    with half_sent(sender, base) as (image_id, link, rest):
        sender.place.objects.s3.signal(signal.SIGSTOP)
        try:
            link.sendall(rest)
            assert b" 200 " in link.recv(100)
            link.close()
            time.sleep(STILL_S + 2)
        finally:
            sender.place.objects.s3.signal(signal.SIGCONT)
    check_not_whole(sender, image_id)
    assert broken(sender) == before + 1


def broken(sender):
    """Return how many flattens were aborted, for any reason."""
    return sum(map(sender.counted, ("client", "base", "glance")))


def test_silent_client_times_out(sender, base):
    image_id, stream = sender.queued("raw"), DISK.stream(base)
    with sender.slowly(image_id, len(stream), "raw") as link:
        begun(sender, link, stream, image_id)
        began_s = time.monotonic()
        changed_disks.rest_of(link)
        assert time.monotonic() - began_s < STILL_S + 15
    check_not_whole(sender, image_id)
    assert f"no data of the delta arrived for {STILL_S:g} s" in sender.gateway.log()


def test_client_that_trickles_bytes_times_out(sender, base):
    image_id, stream = sender.queued("raw"), DISK.stream(base)
    with sender.slowly(image_id, len(stream), "raw") as link:
        began_s = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - began_s < STILL_S + 15:
                link.sendall(stream[:1])
                stream = stream[1:]
                time.sleep(0.5)
    assert sender.status(image_id) == "queued"


def test_wrong_trailer_leaves_no_image(sender, base):
    image_id, stream = sender.queued("raw"), bytearray(DISK.stream(base))
    stream[-1] ^= 1
    assert "the trailer does not match" in said(sender.send(image_id, bytes(stream), "raw"), 400)
    check_not_whole(sender, image_id)


def test_altered_delta_leaves_no_image(sender, base):
    image_id, stream = sender.queued("raw"), bytearray(DISK.stream(base))
    stream[HALF] ^= 1
    assert "the trailer does not match" in said(sender.send(image_id, bytes(stream), "raw"), 400)
    check_not_whole(sender, image_id)


@pytest.mark.parametrize("more", [-1, 1, 4096])
def test_body_of_another_length_is_refused_before_it_is_read(sender, base, more):
    image_id, stream = sender.queued("raw"), DISK.stream(base)
    body = stream[:more] if more < 0 else stream + bytes(more)
    assert "does not match its header" in said(sender.send(image_id, body, "raw"), 400)
    assert sender.status(image_id) == "queued"


def test_body_that_ends_before_its_length_leaves_no_image(sender, base):
    image_id, stream = sender.queued("raw"), DISK.stream(base)
    with sender.slowly(image_id, len(stream), "raw") as link:
        begun(sender, link, stream, image_id)
        link.sendall(stream[HALF:-1])
        link.shutdown(1)
        assert " 400 " in changed_disks.rest_of(link)
    check_not_whole(sender, image_id)


# The gateway


def test_killed_gateway_leaves_no_image(sender, base):
    image_id, stream = sender.queued("raw"), DISK.stream(base)
    with sender.slowly(image_id, len(stream), "raw") as link:
        begun(sender, link, stream, image_id)
        sender.gateway.kill()
        assert changed_disks.rest_of(link) == ""
    sender.wait_status(image_id, "queued")
    sender.gateway.start()
    sender.gateway.wait_ready()
    check_not_whole(sender, image_id)


# The base's store


def test_crash_of_the_base_store_midway_leaves_no_image(sender, base):
    before = broken(sender)
    with half_sent(sender, base) as (image_id, link, rest):
        sender.place.objects.s3.kill()
        link.sendall(rest)
        answer = changed_disks.rest_of(link)
    assert error_of(answer)["code"] == 502
    sender.place.objects.start()
    check_not_whole(sender, image_id)
    assert broken(sender) == before + 1  # by Glance, where the same store takes the image


def test_flatten_waits_for_a_base_store_that_returns_soon(sender, base):
    image_id, stream = sender.queued("raw"), LATE.stream(base)
    with sender.slowly(image_id, len(stream), "raw") as link:
        link.sendall(stream[:HALF])
        sender.place.objects.s3.signal(signal.SIGSTOP)
        try:
            link.sendall(stream[HALF:])
            time.sleep(3.0)  # longer than the read time-out
        finally:
            sender.place.objects.s3.signal(signal.SIGCONT)
        last = json.loads(changed_disks.rest_of(link).splitlines()[-1])
    assert last["state"] == "done"
    assert sender.status(image_id) == "active"


def test_damaged_base_leaves_no_image(sender, tmp_path):
    packed = bytearray(uploads.qcow2(tmp_path, BASE))
    packed[len(packed) // 2 : len(packed) // 2 + 70_000] = b"\xff" * 70_000
    damaged = sender.place.upload("fs", bytes(packed), disk_format="qcow2")
    image_id = sender.queued("raw")  # as qcow2 the cluster would be copied as it is
    answer = sender.send(image_id, DISK.stream(damaged), "raw")
    assert "the base: the cluster at" in error_of(answer.text)["message"]
    check_not_whole(sender, image_id)


# Glance


def test_hung_glance_times_out(sender, base):
    image_id, stream = sender.queued("raw"), DISK.stream(base)
    with sender.slowly(image_id, len(stream), "raw") as link:
        begun(sender, link, stream, image_id)
        sender.place.lab.glance.signal(signal.SIGSTOP)
        try:
            link.sendall(stream[HALF:])
            answer = changed_disks.rest_of(link)
        finally:
            sender.place.lab.glance.signal(signal.SIGCONT)
    assert "Glance does not take the image's bytes" in answer
    wait_idle(sender)


def test_crash_of_glance_midway_is_reported(sender, base):
    """Glance leaves the image ``saving`` then, however it was sent."""
    image_id, stream = sender.queued("raw"), DISK.stream(base)
    before = sender.counted("glance")
    with sender.slowly(image_id, len(stream), "raw") as link:
        begun(sender, link, stream, image_id)
        sender.place.lab.glance.kill()
        with contextlib.suppress(ConnectionError):  # it may have noticed before
            link.sendall(stream[HALF:])
        answer = changed_disks.rest_of(link)
    assert "Glance" in answer
    wait_idle(sender)
    sender.place.start_stores()
    assert sender.status(image_id) != "active"
    assert sender.counted("glance") == before + 1


def test_deletion_of_the_image_midway_is_reported(sender, base):
    image_id, stream = sender.queued("raw"), DISK.stream(base)
    with sender.slowly(image_id, len(stream), "raw") as link:
        begun(sender, link, stream, image_id)
        sender.place.ask("tenant", "DELETE", f"/v2/images/{image_id}").raise_for_status()
        with contextlib.suppress(ConnectionError):  # it may have noticed before
            link.sendall(stream[HALF:])
        answer = changed_disks.rest_of(link)
    assert error_of(answer)["code"] in (404, 409, 410, 502)
    wait_idle(sender)


# Limits


def test_flattens_beyond_the_limit_get_503_with_retry_after(sender, base):
    stranger = changed_disks.Sender(sender.place, sender.gateway, "stranger")
    admin = changed_disks.Sender(sender.place, sender.gateway, "admin")
    stream, mine = DISK.stream(base), sender.queued("raw")
    with sender.slowly(mine, len(stream), "raw") as first:
        begun(sender, first, stream, mine)
        again = sender.send(sender.queued("raw"), stream, "raw")
        assert "of this project" in said(again, 503)
        assert again.headers["Retry-After"] == "30"
        theirs = stranger.place.ask("stranger", "GET", "/v2/images")  # it has a project of its own
        assert theirs.ok
        with admin.slowly(admin.queued("raw"), len(stream), "raw") as second:
            second.sendall(stream[:HALF])
            runs.wait_for(
                lambda: sender.gateway.counted("flatten_jobs_in_flight") == 2,
                20,
                "two of them",
                sender.gateway.log,
            )
            busy = said(stranger.send(stranger.queued("raw"), stream, "raw"), 503)
            assert busy == "2 flatten jobs are in progress, of 2"
        first.sendall(stream[HALF:])
        assert '"state":"done"' in changed_disks.rest_of(first)
    assert sender.gateway.counted("flatten_jobs_limit") == 2
    assert sender.counted("busy") >= 2
