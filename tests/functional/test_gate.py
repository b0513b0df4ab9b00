# SPDX-License-Identifier: Apache-2.0
"""Faults of a whole cloud, one after the other: the operator's tools name each of them.

So does the gate of the roll-out guide, which fails while a fault lasts.

"""

import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from tests.fakes import hosts
from tests.fakes import watched_cloud
from tests.lab import documents
from tests.lab import runs
from tests.lab import tiers
from tests.lab.openstack import cloud

pytestmark = [
    hosts.needs_fuse,
    hosts.needs_take_over,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Debian's package prometheus"),
]

Cloud = watched_cloud.WatchedCloud
SEEN_S = 60.0
HOST, CONTROLLER = watched_cloud.BROKEN, watched_cloud.CONTROLLER
GATE = documents.section("install/roll_out.rst", "The gate")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of the cloud, and the tools that must name it.

    :param place: the host to be named
    :param finding: code in ``openstack acstor status``
    :param check: finding of the check on that host
    :param alert: of Prometheus

    """

    broken: Callable[[Cloud], contextlib.AbstractContextManager[None]]
    place: str
    finding: str
    check: str
    alert: str


FAULTS = {
    "dead agent": Fault(Cloud.agent_dead, HOST, "host-silent", "agent", "AcstorAgentDown"),
    "dead mount": Fault(Cloud.mount_dead, HOST, "mount-dead", "guests", "AcstorGuestsOnDeadMount"),
    "silent listener": Fault(
        lambda it: it.hung("listener"),
        CONTROLLER,
        "listener-silent",
        "listeners",
        "AcstorGlanceListenerDown",
    ),
    "stopped leader": Fault(
        lambda it: it.hung("leader"), CONTROLLER, "no-samples", "hosts", "AcstorDecisionDown"
    ),
    "wrong transport_url": Fault(
        lambda it: it.transport_url_of("rabbit://guest:guest@127.0.0.1:9/"),
        HOST,
        "host-silent",
        "agent: message bus",
        "AcstorAgentFault",
    ),
    "password refused by the broker": Fault(
        Cloud.password_refused, HOST, "host-silent", "agent: message bus", "AcstorHostSilent"
    ),
    "full cache": Fault(
        Cloud.cache_full, HOST, "image-not-cached", "space for images", "AcstorImageExceedsCache"
    ),
    "expired certificate": Fault(
        Cloud.certificate_ended,
        HOST,
        "certificate-expired",
        "certificate",
        "AcstorCertificateExpired",
    ),
    "two versions": Fault(
        Cloud.versions_apart, HOST, "versions-differ", "version", "AcstorVersionsDiffer"
    ),
}


@pytest.fixture(scope="module")
def watched(
    image_services: cloud.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    folder: pathlib.Path = tmp_path_factory.mktemp("watched")
    with watched_cloud.running(image_services, folder) as running:
        running.wait_quiet()
        yield running


def unnamed(watched: Cloud, fault: Fault) -> set[str]:
    """Return which of status and alerts do not name a fault, its place and a remedy."""
    in_status = any(
        one["code"] == fault.finding
        and one["remedy"]
        and any(fault.place in subject for subject in one["subjects"])
        for one in watched.status()["findings"]
    )
    in_alerts = any(
        one["labels"]["alertname"] == fault.alert
        and one["labels"].get("instance") == fault.place
        and one["annotations"]["description"]
        for one in watched.alerts()
    )
    return {
        *(set() if in_status else {"status"}),
        *(set() if in_alerts else {"alerts"}),
    }


@pytest.mark.parametrize("what", tiers.first_now(FAULTS, 2))
def test_fault_is_named_until_it_is_repaired(watched: Cloud, what: str) -> None:
    fault = FAULTS[what]
    with fault.broken(watched):
        runs.wait_for(
            lambda: not unnamed(watched, fault),
            SEEN_S,
            what,
            lambda: json.dumps([sorted(unnamed(watched, fault)), watched.complaints()], indent=1),
        )
        checked, status = watched.gate(GATE, fault.place)
        assert checked.returncode or status.returncode, f"the gate is passed with: {what}"
        level = r"\W+(outcome )?(warning|error|not guaranteed)\b"
        assert re.search(rf"\W{re.escape(fault.check)}{level}", checked.stdout), checked.stdout
        assert fault.place in status.stdout and "  > " in status.stdout
    watched.wait_quiet()


def test_gate_passes_on_a_healthy_cloud(watched: Cloud) -> None:
    done = [
        one for place in (*watched_cloud.HOSTS, CONTROLLER) for one in watched.gate(GATE, place)
    ]
    assert [one.returncode for one in done] == [0] * 6, done
