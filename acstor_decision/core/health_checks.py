# SPDX-License-Identifier: Apache-2.0
"""Health checks of a cloud: functions of one snapshot that yield findings with remedies."""

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import Final

from acstor_common.wire import decision_messages
from acstor_decision.core import cloud_state
from acstor_decision.core import finding

LATE_S: Final = 60.0  # hosts receive a new v-node table within this time
WAIT_S: Final = 30.0  # longer waits may soon cause errors in guests
NO_SAMPLE_S: Final = 120.0  # an enrolled host sends its first sample within seconds
LISTENER_S: Final = 180.0  # a listener reports every half a minute
TROUBLE_S: Final = 300.0
ENDS_SHARE: Final = 0.2  # share of a certificate's lifetime; hosts renew when a third is left
FAILURE_REMEDIES: Final = {
    "holder": "check the vault of the host that is named last",
    "holder_slow": "check the disk and the network of the host that is named last",
    "holder_lost": "check the disk of the host that is named last: its vault lost chunks; or "
    "revoke it, if it is compromised",
    "too_large": "rebuild the server from an image that has its data",
    "scratch_full": "raise scratch_limit_bytes",
    "overwritten": "raise scratch_limit_bytes",
    "host": "check the routes, the memory, the threads and the descriptors of that host",
    "undescribed": "check QEMU of the server, which libvirt does not describe",
    "full": "raise vault_limit_bytes, give the vault a larger disk, or more hosts vaults",
    "slow": "give vault_dir a file system of its own, or a faster disk",
    "not_safe": "check the disk of vault_dir, and restart acstor-checkpointd",
}
"""Remedies by the reason that a checkpoint daemon reports."""


def find_problems(seen: cloud_state.CloudState) -> list[finding.Finding]:
    """Return the findings of all checks, the worst first."""
    found = [problem for check in CHECKS for problem in check(seen)]
    order = list(finding.Severity)
    return sorted(found, key=lambda problem: -order.index(problem.severity))


def _enrolled(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    if not seen.hosts:
        yield finding.make_finding(
            "no-hosts",
            finding.Severity.WARNING,
            "no host has enrolled or sent a sample",
            [],
            "install acstor-agent on a host, with [enrolment] and transport_url; its log says why "
            "it does not enrol",
        )
    yield from _warning(
        "host-no-samples",
        "hosts enrolled but never sent a sample",
        [
            f"{host.name}: its certificate is {host.no_sample_s / 60:.0f} min old"
            for host in seen.hosts
            if host.no_sample_s is not None and host.no_sample_s > NO_SAMPLE_S
        ],
        "compare [DEFAULT] transport_url there with that of acstor-decision; acstor-agent-ctl "
        "status there names the broker and the user under Faults, and the log of "
        "acstor-decision names the samples that it refuses",
    )


def _silent(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    silent = [
        host.name
        for host in seen.hosts
        if not host.is_up and not host.is_waiting and host.no_sample_s is None
    ]
    if silent and not any(host.is_up for host in seen.hosts):
        yield finding.make_finding(
            "no-samples",
            finding.Severity.ERROR,
            "acstor-decision receives no samples",
            [*([f"instance {seen.instance}: the last leader"] if seen.instance else []), *silent],
            "check that acstor-decision and the broker run, and read the log of acstor-decision "
            "on the last leader; hosts continue with the v-node table that they have",
        )
    elif silent:
        yield finding.make_finding(
            "host-silent",
            finding.Severity.WARNING,
            "hosts send no samples",
            silent,
            "check acstor-agent there (systemctl status acstor-agent); delete the record of a "
            "decommissioned host: openstack acstor host forget <host>",
        )


def _waiting(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    yield from _warning(
        "host-waiting",
        "hosts wait for approval to enrol",
        [host.name for host in seen.hosts if host.is_waiting],
        "compare the key (openstack acstor host show) with that of the host, then openstack acstor "
        "host allow <host> --fingerprint <key>",
    )


def _certificates(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    left = sorted(
        (
            (host.name, host.lifetime_left)
            for host in seen.hosts
            if host.is_up and host.lifetime_left is not None
        ),
        key=lambda pair: pair[1],
    )
    remedy = "acstor-agent-ctl status there says under Identity why the renewal fails"
    if ended := [name for name, share in left if share <= 0]:
        message = "certificates have expired; other hosts will soon refuse these hosts"
        yield finding.make_finding(
            "certificate-expired", finding.Severity.ERROR, message, ended, remedy
        )
    if soon := [name for name, share in left if 0 < share < ENDS_SHARE]:
        message = "certificates expire soon and were not renewed"
        yield finding.make_finding(
            "certificate-expires", finding.Severity.WARNING, message, soon, remedy
        )


def _tables(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    if seen.damaged_epochs:
        yield finding.make_finding(
            "table-damaged",
            finding.Severity.ERROR,
            "v-node tables in the database are damaged",
            [f"epoch {epoch}" for epoch in seen.damaged_epochs],
            "hosts keep their table; check the disk and the log of the database, and run DELETE "
            "FROM rings WHERE epoch = <epoch>",
        )
    if not seen.epoch:
        if seen.hosts:
            yield finding.make_finding(
                "no-table",
                finding.Severity.WARNING,
                "no v-node table was published, so hosts exchange no chunks",
                [],
                "check in the log of acstor-decision that an instance leads and receives samples",
            )
        return
    is_due = seen.published_ago_s is not None and seen.published_ago_s > LATE_S
    late = [host for host in seen.hosts if host.is_up and host.epoch < seen.epoch]
    if is_due and late:
        yield finding.make_finding(
            "table-old",
            finding.Severity.WARNING,
            f"hosts use an older v-node table than {seen.epoch}",
            [f"{host.name}: {host.epoch}" for host in sorted(late, key=lambda host: host.epoch)],
            "tables arrive over the message bus: see the log of acstor-agent there",
        )


def _late_reads(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    if late := [
        (host, report) for host, report in _reported(seen) if report.longest_wait_s > WAIT_S
    ]:
        yield finding.make_finding(
            "reads-wait",
            finding.Severity.ERROR,
            f"guests' requests have waited for more than {WAIT_S:g} s",
            [
                f"{host.name}: {report.waiting} requests, {report.longest_wait_s:.0f} s"
                + (f", {report.waits_for}" if report.waits_for else "")
                for host, report in sorted(late, key=lambda pair: -pair[1].longest_wait_s)
            ],
            "a read blocks until its data arrives: check the image store and the network between "
            "hosts; acstor-agent-ctl status there has details",
        )


def _io_errors(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    reported = list(_reported(seen))
    if lost := [
        f"{host.name}: {guest}" for host, report in reported for guest in report.on_dead_mounts
    ]:
        yield finding.make_finding(
            "mount-dead",
            finding.Severity.ERROR,
            "guests use a dead mount and get I/O errors",
            lost,
            "restart these servers (openstack server reboot --hard); they then read through the "
            "current mount",
        )
    if failed := [(host, report) for host, report in reported if report.failed_reads]:
        yield finding.make_finding(
            "reads-failed",
            finding.Severity.ERROR,
            "guests got I/O errors in the last hour",
            [
                f"{host.name}: {report.failed_reads}"
                for host, report in sorted(failed, key=lambda pair: -pair[1].failed_reads)
            ],
            "the data was lost, or no source returned it in time: check whether an image in use "
            "was deleted; the log of acstor-agent there names it",
        )


def _fallbacks(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    if back := [(host, report) for host, report in _reported(seen) if report.fallbacks]:
        yield finding.make_finding(
            "nova-fallback",
            finding.Severity.WARNING,
            "Nova fell back to its own download in the last hour",
            [
                f"{host.name}: {_counted(report.fallbacks)}"
                for host, report in sorted(back, key=lambda pair: -sum(pair[1].fallbacks.values()))
            ],
            "the log of nova-compute there names the images and the reasons; acstor-nova-manage "
            "check finds configuration errors",
        )


def _parts(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    yield from _warning(
        "agent-fault",
        "components of agents fail; guests read without them",
        [
            f"{host.name}: {what}: {trouble.why}"
            for host, health in _reported(seen)
            for what, trouble in sorted(health.faults.items())
            if seen.now_s - trouble.since_s > TROUBLE_S
        ],
        "acstor-agent-ctl status there lists them under Faults, since when",
    )
    versions = {health.version for _, health in _reported(seen) if health.version}
    if len(versions) > 1:
        yield finding.make_finding(
            "versions-differ",
            finding.Severity.WARNING,
            "hosts run different versions of acstor",
            sorted(f"{host.name}: {health.version}" for host, health in _reported(seen)),
            "expected during an upgrade; otherwise upgrade the other hosts",
        )


def _images(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    if seen.images is None:
        yield finding.make_finding(
            "glance-unreachable",
            finding.Severity.WARNING,
            "Glance does not list its images",
            [seen.why_no_images] if seen.why_no_images else [],
            "try openstack image list; the REST API uses the address of [glance] endpoint_override "
            "or of Keystone's catalog",
        )
        return
    late = [image for image in seen.images if image.state is cloud_state.ImageState.NOT_BEGUN]
    yield from _warning(
        "image-not-prepared",
        "images are not prepared, so Nova downloads them itself",
        [f"{image.image_id} ({image.name})" for image in late],
        "check that acstor-glance-listener runs and receives Glance's notifications; its log "
        "and acstor-glance-manage check show what it sees",
    )
    failed = [image for image in seen.images if image.state is cloud_state.ImageState.FAILED]
    yield from _warning(
        "image-failed",
        "the preparation of images failed, so Nova downloads them itself",
        [f"{image.image_id} ({image.name}): {image.why}" for image in failed],
        "the listener retries; to retry now: openstack acstor image prepare --force <image>",
    )


def _listeners(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    yield from _warning(
        "listener-silent",
        "Glance listeners are silent",
        [
            f"{listener.name}: for {listener.reported_ago_s / 60:.0f} min"
            for listener in sorted(seen.listeners, key=lambda listener: -listener.reported_ago_s)
            if listener.reported_ago_s > LISTENER_S
        ],
        "check acstor-glance-listener there (systemctl status acstor-glance-listener); without "
        "a listener, new images are not prepared and images in use can be deleted. The service "
        "forgets a removed listener when others have reported for a day",
    )


def _fills(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    yield from _warning(
        "image-not-cached",
        "images in use do not become fully cached",
        [f"{image.host}: {image.image_id}: {image.why}" for image in seen.unfinished],
        "their servers depend on other hosts and on the image store: raise cache_limit_bytes, "
        "or openstack acstor image hydrate <image>",
    )


def _checkpoints(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    ages = [
        (seen.now_s - checkpoint.taken_s, checkpoint)
        for checkpoint in seen.checkpoints
        if checkpoint.interval_s
    ]
    ages.sort(key=lambda pair: -pair[0] / pair[1].interval_s)
    yield from _warning(
        "checkpoint-late",
        "checkpoints are older than their interval",
        [
            f"{checkpoint.instance_id}: {age_s / 60:.0f} min"
            for age_s, checkpoint in ages
            if age_s > 2 * checkpoint.interval_s + TROUBLE_S
        ],
        "data written since is lost if their hosts fail now; the log of acstor-checkpointd "
        "there says why",
    )


def _checkpoint_failures(seen: cloud_state.CloudState) -> Iterator[finding.Finding]:
    if failing := [
        (host, failure)
        for host, failures in sorted(seen.checkpoint_failures.items())
        for failure in failures
    ]:
        reasons = {failure.reason for _, failure in failing}
        remedies = [f"{why}: {what}; " for why, what in FAILURE_REMEDIES.items() if why in reasons]
        yield finding.make_finding(
            "checkpoint-failed",
            finding.Severity.WARNING,
            "checkpoints or vaults fail",
            [
                f"{fault.instance_id or 'vault'} on {host}: {fault.reason} {fault.holder}".rstrip()
                for host, fault in sorted(failing, key=lambda pair: bool(pair[1].instance_id))
            ],
            f"{''.join(remedies)}the log of acstor-checkpointd on that host has details",
        )


CHECKS: Final[tuple[Callable[[cloud_state.CloudState], Iterator[finding.Finding]], ...]] = (
    _enrolled,
    _silent,
    _waiting,
    _certificates,
    _tables,
    _late_reads,
    _io_errors,
    _fallbacks,
    _parts,
    _images,
    _listeners,
    _fills,
    _checkpoints,
    _checkpoint_failures,
)


def _warning(
    code: str, message: str, subjects: Collection[str], remedy: str
) -> Iterator[finding.Finding]:
    if subjects:
        yield finding.make_finding(code, finding.Severity.WARNING, message, subjects, remedy)


def _reported(
    seen: cloud_state.CloudState,
) -> Iterator[tuple[cloud_state.HostStatus, decision_messages.HostHealth]]:
    for host in seen.hosts:
        if host.is_up and host.health is not None:
            yield host, host.health


def _counted(counts: dict[str, int]) -> str:
    """Return counts in words, the most frequent first.

    >>> _counted({"a": 1, "b": 3})
    'b 3, a 1'
    """
    return ", ".join(f"{what} {times}" for what, times in collections.Counter(counts).most_common())
