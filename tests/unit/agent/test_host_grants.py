# SPDX-License-Identifier: Apache-2.0
"""A host requests grants when it needs them, and reads by former ones while it gets none."""

import shutil
import threading

import pytest
import trio

from acstor_agent.sources import host_grants
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import image_grants
from tests.fakes import cloud_keys
from tests.fakes import manual_clock

KEYS = cloud_keys.CloudKeys()
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
TARGET = image_grants.target_of(f"/v1/images/{IMAGE}/file", "bytes=0-9")
WHERE = "the decision service"


class Service:
    """Gives grants to h1, or raises ``fault``; counts requests."""

    def __init__(self, folder):
        self.folder, self.fault, self.requests = folder, None, 0
        self.go_on = threading.Event()
        self.go_on.set()
        KEYS.give(folder, "h1")
        self.files = identity_files.IdentityFiles(
            ids.HostId("h1"), identity_files.files_in(folder / "identity")
        )

    def request(self, image_id):
        self.requests += 1
        self.go_on.wait(30)
        if self.fault:
            raise self.fault
        certificate = self.files.current_credentials().certificate
        asked = image_grants.GrantRequest("h1", image_id, KEYS.now_s)
        return image_grants.new_grant(asked, certificate, KEYS.signing_key, KEYS.now_s)


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path)
    yield made
    made.go_on.set()


@pytest.fixture
def grants(service):
    return host_grants.HostGrants(
        service.request, service.files, manual_clock.FunctionClock(lambda: KEYS.now_s)
    )


async def ask(grants):
    headers = await grants.headers_of("a range", IMAGE, TARGET)
    signers = signing.read_public_keys(KEYS.signers)
    return image_grants.verify_use(headers, TARGET, signers, {}, KEYS.now_s)


async def test_one_request_serves_all_reads_of_an_image(service, grants):
    found = []

    async def read():
        found.append(await ask(grants))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(read)
    assert [(grant.host, grant.image_id) for grant in found] == [("h1", IMAGE)] * 20
    assert service.requests == 1


async def test_grant_is_renewed_after_half_of_its_life(service, grants, mock_clock):
    await ask(grants)
    mock_clock.jump(host_grants.RENEW_AFTER_S - 1)
    await ask(grants)
    assert service.requests == 1
    mock_clock.jump(2)
    await ask(grants)
    await ask(grants)
    assert service.requests == 2


@pytest.mark.parametrize("error", [errors.SourceUnreachable, errors.ChunkRefused])
async def test_former_grant_is_used_until_it_expires_while_renewal_fails(
    service, grants, mock_clock, error
):
    await ask(grants)
    service.fault = error("a grant", WHERE, "away")
    mock_clock.jump(host_grants.RENEW_AFTER_S + 1)
    for _ in range(5):
        await ask(grants)
    assert service.requests == 2  # it tries again later
    mock_clock.jump(host_grants.RETRY_S)
    await ask(grants)
    assert service.requests == 3
    mock_clock.jump(image_grants.LIFETIME_S / 2)
    with pytest.raises(error, match="away"):
        await ask(grants)
    service.fault = None
    await ask(grants)


async def test_silent_service_delays_reads_for_a_bounded_time(service, grants):
    await ask(grants)
    service.go_on.clear()
    held = grants._held[IMAGE]
    grants._held[IMAGE] = held._replace(renew_s=trio.current_time() - 1)
    with trio.fail_after(host_grants.RENEWAL_S + 5):
        await ask(grants)


async def test_refused_grant_is_replaced_unless_it_is_new(service, grants, mock_clock):
    await ask(grants)
    grants.forget_refused(IMAGE)
    await ask(grants)
    assert service.requests == 1
    mock_clock.jump(host_grants.LEAST_AGE_S)
    grants.forget_refused(IMAGE)
    await ask(grants)
    assert service.requests == 2


async def test_new_certificate_needs_a_new_grant(service, grants):
    await ask(grants)
    KEYS.give(service.folder, "h1")
    service.files.invalidate()
    await ask(grants)
    assert service.requests == 2


async def test_first_grant_waits_for_the_certificate_of_a_new_host(service, tmp_path):
    folder = tmp_path / "new"
    files = identity_files.IdentityFiles(
        ids.HostId("h1"), identity_files.files_in(folder / "identity")
    )
    grants = host_grants.HostGrants(
        service.request, files, manual_clock.FunctionClock(lambda: KEYS.now_s)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, grants)
        await trio.sleep(host_grants.CERTIFICATE_TICK_S)
        assert service.requests == 0
        shutil.copytree(service.folder, folder, ignore=shutil.ignore_patterns("new"))
        files.invalidate()
    assert service.requests == 1


async def test_host_without_a_certificate_requests_nothing(service, tmp_path, autojump_clock):
    nobody = identity_files.IdentityFiles(
        ids.HostId("h1"), identity_files.files_in(tmp_path / "nowhere")
    )
    grants = host_grants.HostGrants(service.request, nobody)
    began_s = trio.current_time()
    for _ in range(3):  # only the first one waits
        with pytest.raises(errors.SourceUnreachable, match="no certificate"):
            await ask(grants)
    assert trio.current_time() - began_s == pytest.approx(host_grants.REQUEST_S, abs=1.0)
    assert service.requests == 0
