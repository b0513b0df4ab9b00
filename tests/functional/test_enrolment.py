# SPDX-License-Identifier: Apache-2.0
"""Agents that get certificates from a real decision API, with tokens of a real Keystone."""

import json
import pathlib
import stat
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_decision import conf as decision_conf
from acstor_decision.db import database
from acstor_decision.identity import certificate_authority
from tests.fakes import faulty_proxy
from tests.fakes import hosts
from tests.fakes import manual_clock
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import ini

pytestmark = hosts.needs_fuse

LIFE_S = 60
WAIT_S = 40.0
DATA = local.random_bytes(4 * geometry.MIB, seed=9)


class Api(acstor_decision.DecisionApi):
    """The API, which issues short-lived certificates."""

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        return {**super().sections(), "acstor_decision": {"certificate_lifetime_s": LIFE_S}}


@pytest.fixture
def keeper(tmp_path: pathlib.Path) -> Iterator[certificate_authority.CertificateAuthority]:
    """Return the authority behind the API."""
    conf = cfg.ConfigOpts()
    decision_conf.register_opts(conf)
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    conf.set_override("connection", f"sqlite:///{tmp_path}/decision.sqlite", "database")
    conf.set_override("certificate_lifetime_s", LIFE_S, "acstor_decision")
    store = database.Database(conf)
    store.upgrade()
    yield certificate_authority.CertificateAuthority(conf.acstor_decision, store)
    store.close()


@pytest.fixture
def served(keystone_glance: cloud.Cloud, keeper: Any, tmp_path: pathlib.Path) -> Iterator[Api]:
    """Return the API, which is in the catalog and not started."""
    made = Api(keystone_glance, tmp_path / "api", f"sqlite:///{tmp_path}/decision.sqlite")
    try:
        made.register()
        yield made
    finally:
        made.stop()


@pytest.fixture
def enrolling(keystone_glance: cloud.Cloud) -> dict[str, dict[str, object]]:
    """Return the section of an agent that enrols."""
    signed_in = api.credentials(keystone_glance.keystone.auth_url, "acstor")
    return {"enrolment": {**signed_in, "region_name": api.REGION}}


@pytest.fixture
def image_id(images: local.ImageFolder) -> ids.ImageId:
    return images.add(DATA)


def identity_of(agent: agents.Agent) -> dict[str, Any]:
    found: dict[str, Any] = agent.status()["identity"]
    return found


def enrolled_earlier(
    keeper: certificate_authority.CertificateAuthority,
    lab: cloud.Cloud,
    state_dir: pathlib.Path,
    name: str,
    age_s: float,
) -> None:
    """Give a host the files of an enrolment some seconds ago."""
    user_id = accounts.session(lab.keystone.auth_url, "acstor").get_user_id()
    host, key = ids.parse_host_id(name), certificates.new_key()
    keeper._clock = manual_clock.FunctionClock(lambda: time.time() - age_s)
    issued = keeper.enrol_host(host, user_id, local.LOOPBACK, certificates.request(host, key), "")
    state_dir.mkdir(parents=True)
    new = identity_files.IdentitySet(issued.ca, issued.certificate, key, issued.signers)
    identity_files.write(state_dir / "identity", new)


def test_agent_serves_guests_before_it_can_enrol(served, enrolling, images, image_id, tmp_path):
    with hosts.running(tmp_path / "h1", images, sections=enrolling, life_s=120) as agent:
        assert agent.image_path(image_id).read_bytes() == DATA
        hosts.wait_until(
            lambda: "is unreachable" in identity_of(agent)["enrolment"]["error"], "an error", WAIT_S
        )
        assert identity_of(agent)["certificate_not_after_s"] is None
        asked_for = identity_of(agent)["enrolment"]["fingerprint"]
        assert asked_for in agent.log()
        served.start()
        served.wait_ready()
        hosts.wait_until(lambda: identity_of(agent)["signers"] == 1, "a certificate", WAIT_S)
        found = identity_of(agent)
        assert time.time() < found["certificate_not_after_s"] <= time.time() + LIFE_S
        assert (found["enrolment"]["failures"], found["enrolment"]["error"]) == (0, "")
        assert fingerprint_of(agent.folder / "state" / "identity" / "key.pem") == asked_for
        folder = agent.folder / "state" / "identity"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
        assert agent.log().count("no new certificate: ") <= 2


def test_hung_or_refusing_keystone_and_api_are_reported_until_they_recover(
    served, keystone_glance, enrolling, images, image_id, tmp_path
):
    served.start()
    served.wait_ready()
    with (
        faulty_proxy.before(keystone_glance.keystone.port) as keystone,
        faulty_proxy.before(served.port) as service,
    ):
        own = {"auth_url": f"{keystone.url}/v3", "endpoint_override": service.url, "timeout": 1}
        sections = {"enrolment": {**enrolling["enrolment"], **own}}
        keystone.hang()
        soon = {tuned.ENROLMENT_RETRY_S: 1.0}
        with hosts.running(
            tmp_path / "h1", images, sections=sections, constants=soon, life_s=120
        ) as agent:

            def says(address: str, words: str) -> None:
                wanted = (address, words, f"[enrolment], as acstor at {keystone.url}/v3")
                hosts.wait_until(
                    lambda: all(w in identity_of(agent)["enrolment"]["error"] for w in wanted),
                    f"an error with {wanted}",
                    WAIT_S,
                )
                assert api.PASSWORD not in identity_of(agent)["enrolment"]["error"]
                assert agent.image_path(image_id).read_bytes() == DATA

            says(keystone.url, "timed out")
            keystone.refuse()
            says(keystone.url, "Unable to establish connection")
            service.hang()
            keystone.pass_on()
            says(service.url, "timed out")
            service.refuse()
            says(service.url, "Unable to establish connection")
            service.pass_on()
            hosts.wait_until(lambda: identity_of(agent)["signers"] == 1, "a certificate", WAIT_S)
            assert identity_of(agent)["enrolment"]["error"] == ""


def test_certificate_is_renewed_under_load_and_a_revoked_host_is_refused(
    served, enrolling, keeper, keystone_glance, images, image_id, tmp_path
):
    served.start()
    served.wait_ready()
    for name in ("h1", "h2"):
        state_dir = tmp_path / name / "agent" / "state"
        enrolled_earlier(keeper, keystone_glance, state_dir, name, LIFE_S / 2)
    options = {"security": "secure", "variants": "no-read-ahead,no-advertisements"}
    with hosts.cloud(
        tmp_path, images, ("h1", "h2"), sections=enrolling, life_s=150, **options
    ) as two:
        path = two["h1"].image_path(image_id)
        before = {name: identity_of(two[name])["certificate_not_after_s"] for name in ("h1", "h2")}
        position = 0

        def are_renewed() -> bool:
            nonlocal position
            position = read_some(path, position)
            now = {name: identity_of(two[name])["certificate_not_after_s"] for name in before}
            return all(now[name] > before[name] for name in before)

        hosts.wait_until(are_renewed, "the next certificates", WAIT_S)
        read_some(path, position)
        status = two["h1"].status()
        assert status["fetched"]["home"]["bytes"] + status["fetched"]["peer"]["bytes"] > 0
        assert (status["exchange"]["failovers"], status["exchange"]["in_backoff"]) == (0, {})
        revoke(keystone_glance, two, "h2")
        hosts.wait_until(lambda: two["h1"].status()["ring"]["epoch"] == 2, "the table", WAIT_S)
        hosts.wait_until(
            lambda: "its certificate was revoked" in two["h1"].log(), "a refusal", WAIT_S
        )
        assert path.read_bytes() == DATA  # from the source


def fingerprint_of(key_file: pathlib.Path) -> str:
    """Return the fingerprint of a key, computed as the guide says."""
    command = f"openssl pkey -in {key_file} -pubout -outform DER | sha256sum"
    return subprocess.run(
        command, shell=True, check=True, capture_output=True, text=True
    ).stdout.split()[0]


def read_some(path: pathlib.Path, position: int) -> int:
    """Read the next 64 KiB of an image, and return the next position."""
    with path.open("rb", buffering=0) as file:
        file.seek(position)
        assert file.read(65536) == DATA[position : position + 65536]
    return (position + 65536) % len(DATA)


def revoke(lab: cloud.Cloud, two: hosts.Cloud, name: str) -> None:
    """Revoke a host as an operator does, and publish a ring table with the revocation."""
    said = acstor_decision.openstack(lab, "admin", "host", "revoke", name, "-f", "json")
    assert said.returncode == 0, said.stderr
    table = hosts.ring_table(two.ports, epoch=2)
    table["revoked"] = {name: certificates.refused_before(time.time())}
    new = two.ring_file.with_suffix(".new")
    new.write_text(json.dumps(table))
    new.replace(two.ring_file)
