# SPDX-License-Identifier: Apache-2.0
"""Each finding, from a cloud state that has exactly this problem."""

import msgspec
import pytest

from acstor_common.wire import checkpoint_messages as messages
from acstor_common.wire import decision_messages
from acstor_decision.core import cloud_state
from acstor_decision.core import finding
from acstor_decision.core import health_checks

NOW_S = 1_800_000_000.0
SERVER = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
WELL = decision_messages.HostHealth(version="1.0")


def host(name="h1", **fields):
    given = {"is_up": True, "epoch": 7, "lifetime_left": 0.6, "health": WELL, **fields}
    return cloud_state.HostStatus(name=name, **given)


def seen(*hosts, **fields):
    given = {
        "now_s": NOW_S,
        "epoch": 7,
        "published_ago_s": 600.0,
        "hosts": hosts or (host(),),
        "images": (),
        "unfinished": (),
        "checkpoints": (),
        **fields,
    }
    return cloud_state.CloudState(**given)


def reported(**fields):
    return host(health=msgspec.structs.replace(WELL, **fields))


def image(state, why=""):
    return cloud_state.ImageStatus(image_id="i1", name="debian", state=state, why=why)


def checkpoint(age_s, interval_s):
    return cloud_state.NewestCheckpoint("s1", NOW_S - age_s, interval_s, 0)


TROUBLE = decision_messages.HostFault("address in use", NOW_S - 301)
FOUND = {
    "no-samples": seen(host(is_up=False)),
    "host-silent": seen(host(), host("h2", is_up=False)),
    "host-no-samples": seen(host(), host("h2", is_up=False, no_sample_s=121.0)),
    "no-hosts": seen(hosts=(), epoch=0, published_ago_s=None),
    "host-waiting": seen(host(), host("h2", is_up=False, is_waiting=True)),
    "certificate-expired": seen(host(lifetime_left=-0.1)),
    "certificate-expires": seen(host(lifetime_left=0.1)),
    "no-table": seen(epoch=0, published_ago_s=None),
    "table-old": seen(host(epoch=6)),
    "table-damaged": seen(damaged_epochs=[7]),
    "reads-wait": seen(reported(waiting=2, longest_wait_s=31.0, waits_for="no route")),
    "reads-failed": seen(reported(failed_reads=1)),
    "mount-dead": seen(reported(on_dead_mounts=("s1", "process 7 (qemu)"))),
    "nova-fallback": seen(reported(fallbacks={"agent-unreachable": 2})),
    "agent-fault": seen(reported(faults={"metrics": TROUBLE})),
    "versions-differ": seen(reported(version="1.1"), host("h2")),
    "glance-unreachable": seen(images=None),
    "listener-silent": seen(
        listeners=[cloud_state.ListenerStatus(name="c1", reported_ago_s=181.0)]
    ),
    "image-not-prepared": seen(images=[image(cloud_state.ImageState.NOT_BEGUN)]),
    "image-failed": seen(images=[image(cloud_state.ImageState.FAILED, "no room")]),
    "image-not-cached": seen(
        unfinished=[cloud_state.UnfilledImage(host="h1", image_id="i1", why="no room")]
    ),
    "checkpoint-failed": seen(
        checkpoint_failures={"h1": [messages.Failing(SERVER, "holder", "h2")]}
    ),
    "checkpoint-late": seen(checkpoints=[checkpoint(7501.0, 3600)]),
}


@pytest.mark.parametrize("code", FOUND)
def test_each_problem_gives_one_finding_with_a_remedy(code):
    (found,) = health_checks.find_problems(FOUND[code])
    assert found.code == code
    assert found.remedy and found.severity is not finding.Severity.OK
    assert found.count == len(found.subjects)


def test_every_check_has_a_test_case():
    tried = {one.code for picture in FOUND.values() for one in health_checks.find_problems(picture)}
    assert tried == set(FOUND)


@pytest.mark.parametrize(
    "picture",
    [
        seen(),
        seen(host(epoch=6), published_ago_s=59.0),  # the table is still being distributed
        seen(host(), host("h2", is_drained=True, is_overloaded=True)),
        seen(host(health=None)),  # an agent that reports no health
        seen(reported(waiting=1, longest_wait_s=10.0)),
        seen(reported(faults={"metrics": decision_messages.HostFault("x", NOW_S - 10)})),
        seen(
            images=[
                image(cloud_state.ImageState.NOT_SERVED, "iso"),
                image(cloud_state.ImageState.READY),
            ]
        ),
        seen(images=[image(cloud_state.ImageState.PREPARING)]),
        seen(listeners=[cloud_state.ListenerStatus(name="c1", reported_ago_s=60.0)]),
        seen(checkpoints=[checkpoint(7400.0, 3600), checkpoint(1e9, 0)]),
        seen(host(), host("h2", is_up=False, no_sample_s=10.0)),  # it has just enrolled
    ],
)
def test_healthy_state_gives_no_finding(picture):
    assert health_checks.find_problems(picture) == []
    assert finding.worst_severity([]) is finding.Severity.OK


def test_remedy_for_a_waiting_host_allows_only_the_compared_key():
    (found,) = health_checks.find_problems(FOUND["host-waiting"])
    assert "host allow <host> --fingerprint <key>" in found.remedy


def test_finding_names_the_last_leader_when_no_host_is_heard():
    (found,) = health_checks.find_problems(seen(host(is_up=False), instance="controller1"))
    assert found.subjects == ["instance controller1: the last leader", "h1"]


@pytest.mark.parametrize(("waits_for", "more"), [("", ""), ("no route", ", no route")])
def test_finding_of_waiting_reads_says_what_they_wait_for(waits_for, more):
    late = reported(waiting=2, longest_wait_s=31.0, waits_for=waits_for)
    (found,) = health_checks.find_problems(seen(late))
    assert found.subjects == [f"h1: 2 requests, 31 s{more}"]


def test_findings_are_sorted_by_severity():
    picture = seen(reported(failed_reads=1), host("h2", is_up=False))
    found = health_checks.find_problems(picture)
    assert [one.code for one in found] == ["reads-failed", "host-silent"]
    assert finding.worst_severity(found) is finding.Severity.ERROR


def test_subjects_are_sorted_by_severity():
    ages = [checkpoint(1e6, 3600), checkpoint(1e6, 60), checkpoint(2e6, 3600)]
    (found,) = health_checks.find_problems(seen(checkpoints=ages))
    assert found.subjects == ["s1: 16667 min", "s1: 33333 min", "s1: 16667 min"]
    waits = [
        host(f"h{number}", health=msgspec.structs.replace(WELL, waiting=1, longest_wait_s=wait_s))
        for number, wait_s in enumerate((40.0, 90.0, 60.0))
    ]
    (found,) = health_checks.find_problems(seen(*waits))
    assert [one[:2] for one in found.subjects] == ["h1", "h2", "h0"]


def test_checkpoint_failures_have_remedies_and_list_vaults_first():
    failures = {
        "h1": [messages.Failing(SERVER, "holder", "h2"), messages.Failing(SERVER, "other")],
        "h2": [messages.Failing("", "full"), messages.Failing("", "slow")],
    }
    (found,) = health_checks.find_problems(seen(checkpoint_failures=failures))
    assert found.subjects == [
        "vault on h2: full",
        "vault on h2: slow",
        f"{SERVER} on h1: holder h2",
        f"{SERVER} on h1: other",
    ]
    reported = [why for why in health_checks.FAILURE_REMEDIES if f"{why}: " in found.remedy]
    assert reported == ["holder", "full", "slow"] and found.remedy.endswith("has details")


def test_finding_counts_all_subjects_and_names_some():
    silent = [host(f"h{number}", is_up=False) for number in range(2, 32)]
    (found,) = health_checks.find_problems(seen(host(), *silent))
    assert (found.count, len(found.subjects)) == (30, finding.NAMED)
