# SPDX-License-Identifier: Apache-2.0
"""Status of the cloud: hosts, images, servers, and findings for the operator."""

import collections
import datetime

import msgspec

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_decision.api import glance_client
from acstor_decision.api import operation
from acstor_decision.api.v1 import hosts
from acstor_decision.api.v1 import rings
from acstor_decision.core import cloud_state
from acstor_decision.core import enrolment_rules
from acstor_decision.core import finding
from acstor_decision.core import health_checks
from acstor_decision.db import image_queries
from acstor_decision.db import models
from acstor_decision.db import ring_queries
from acstor_decision.db import sample_queries

MAX_UNFINISHED = 1000
MAX_VERSIONS = MAX_REASONS = 20
STUCK = (fill_progress.FillState.NO_SPACE, fill_progress.FillState.FAILING)
"""States in which an image does not become fully cached without intervention."""
NEW_S = 600.0  # the listener begins with a new image within this time


class HostCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of hosts.

    :param up: hosts that send samples
    :param overloaded: of these, hosts whose links were overloaded in the last collection
    :param silent: hosts that send no samples
    :param waiting: hosts that an operator must allow to enrol
    :param versions: number of hosts that are up by their version of acstor; "": not reported
    """

    up: int
    overloaded: int
    silent: int
    waiting: int
    drained: int
    versions: dict[str, int]


class RingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The current v-node table.

    :param hosts: number of its hosts
    :param up_to_date_hosts: number of hosts that are up and use it
    """

    epoch: int
    published_at: datetime.datetime
    hosts: int
    up_to_date_hosts: int


class ImageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of images that Glance shows the client, without hidden ones.

    :param ready: images from whose mirrors servers boot
    :param preparing: images whose preparation is not complete
    :param failed: images whose preparation failed; the listener tries again
    :param unsupported: images that acstor does not serve, by the reason, the most frequent first;
        Nova downloads them itself
    :param unsupported_total: number of all of these
    :param is_complete: all images are counted
    """

    ready: int
    preparing: int
    failed: int
    unsupported: dict[str, int]
    unsupported_total: int
    is_complete: bool


class ImageUseCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of images in use, counted on each host.

    :param fully_cached: images whose servers need no other host and no image store
    """

    used: int
    fully_cached: int


class GuestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of guests that wait or fail.

    :param waiting_requests: requests that have waited for 5 s or more
    :param longest_wait_s: age of the oldest of these
    :param failed_reads: reads that failed in the last hour
    :param fallbacks: fallbacks to Nova's own download in the last hour, by the reason
    """

    waiting_requests: int
    longest_wait_s: float
    failed_reads: int
    fallbacks: dict[str, int]


class CheckpointCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints of servers.

    :param servers: number of servers with checkpoints
    :param oldest_age_s: age of the oldest among their latest checkpoints; null: there are none
    """

    servers: int
    oldest_age_s: float | None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the cloud.

    :param health: severity of the worst finding
    :param findings: problems, the worst first
    :param ring: null: no v-node table was published
    :param images: null: Glance does not answer
    """

    health: finding.Severity
    findings: list[finding.Finding]
    hosts: HostCounts
    ring: RingStatus | None
    images: ImageCounts | None
    images_in_use: ImageUseCounts
    guests: GuestCounts
    checkpoints: CheckpointCounts
    now: datetime.datetime


def show(call: operation.Call) -> Status:
    """Return the status of the cloud."""
    now_s = call.wall()
    seen_hosts = [_host(call, *pair) for pair in _known(call)]
    listed, why_unlisted = _listed(call)
    images = None if listed is None else [_image(one, now_s) for one in listed.images]
    last = call.store.list_rings(limit=2, with_tables=True)
    published = next(iter(last), None)
    uses = call.store.count_uses(operation.up_since_s(call), MAX_UNFINISHED)
    checkpoints = call.store.newest_checkpoints()
    findings = health_checks.find_problems(
        cloud_state.CloudState(
            now_s=now_s,
            epoch=published.epoch if published else 0,
            published_ago_s=now_s - published.published_s if published else None,
            hosts=seen_hosts,
            images=images,
            why_no_images=why_unlisted,
            instance=published.instance if published else "",
            damaged_epochs=[row.epoch for row in last if rings.is_damaged(row)],
            listeners=_listeners(call, now_s),
            unfinished=[found for row in uses.unfinished if (found := _stuck(row))],
            checkpoints=checkpoints,
            checkpoint_failures=call.store.checkpoint_failures(now_s),
        )
    )
    return Status(
        health=finding.worst_severity(findings),
        findings=findings,
        hosts=_host_counts(seen_hosts),
        ring=_ring(published, seen_hosts),
        images=None if listed is None else _image_counts(images or [], listed.is_complete),
        images_in_use=ImageUseCounts(used=uses.uses, fully_cached=uses.fully_cached),
        guests=_guest_counts(seen_hosts),
        checkpoints=CheckpointCounts(
            servers=len(checkpoints),
            oldest_age_s=max((now_s - one.taken_s for one in checkpoints), default=None),
        ),
        now=datetime.datetime.fromtimestamp(now_s, datetime.UTC),
    )


def _listeners(call: operation.Call, now_s: float) -> list[cloud_state.ListenerStatus]:
    return [
        cloud_state.ListenerStatus(
            name=listener.listener, reported_ago_s=now_s - listener.reported_s
        )
        for listener in call.store.list_listeners()
    ]


def _known(call: operation.Call) -> list[tuple[models.Host, models.Enrolment | None]]:
    """Return hosts that sent samples, enrolled or wait, except revoked ones."""
    enrolled = {row.host: row for row in call.store.list_enrolments()}
    reporting = {row.host: row for row in call.store.list_hosts()}
    asked = {name for name, row in enrolled.items() if row.state in _ASKED}
    gone = {name for name, row in enrolled.items() if row.state in _OUT}
    names = sorted({*reporting, *asked} - gone)
    return [(reporting.get(name) or models.Host(host=name), enrolled.get(name)) for name in names]


_ASKED = (enrolment_rules.EnrolmentState.WAITING, enrolment_rules.EnrolmentState.ENROLLED)
_OUT = (enrolment_rules.EnrolmentState.REVOKED, enrolment_rules.EnrolmentState.FORGOTTEN)


def _host(
    call: operation.Call, row: models.Host, enrolled: models.Enrolment | None
) -> cloud_state.HostStatus:
    is_up = hosts.is_up(call, row)
    return cloud_state.HostStatus(
        name=row.host,
        is_up=is_up,
        no_sample_s=_no_sample_s(row, enrolled, call.wall()),
        is_drained=bool(row.is_drained),
        is_overloaded=is_up and bool(row.overloaded_in_a_row),
        epoch=row.ring_epoch or 0,
        is_waiting=enrolled is not None
        and enrolled.state == enrolment_rules.EnrolmentState.WAITING,
        lifetime_left=_left_share(enrolled, call.wall()),
        health=sample_queries.health_of(row),
    )


def _no_sample_s(row: models.Host, enrolled: models.Enrolment | None, now_s: float) -> float | None:
    if row.seen_s is not None or enrolled is None or enrolled.issued_s is None:
        return None
    return now_s - enrolled.issued_s


def _left_share(row: models.Enrolment | None, now_s: float) -> float | None:
    if row is None or row.issued_s is None or row.not_after_s is None:
        return None
    life_s = max(1.0, row.not_after_s - row.issued_s)
    return (row.not_after_s - now_s) / life_s


def _listed(call: operation.Call) -> tuple[glance_client.ImageListing | None, str]:
    try:
        return call.images.list_images(call.auth), ""
    except glance_client.GlanceUnreachable as e:
        return None, e.detail


def _image(record: image_record.Image, now_s: float) -> cloud_state.ImageStatus:
    state, why = _state(record, now_s)
    return cloud_state.ImageStatus(
        image_id=record.id,
        name=record.name,
        state=state,
        why=why,
    )


def _state(record: image_record.Image, now_s: float) -> tuple[cloud_state.ImageState, str]:
    state, message = artefacts.state_of(record), record.text(artefacts.MESSAGE)
    if state is artefacts.State.READY:
        return cloud_state.ImageState.READY, ""
    if artefacts.is_refused(record):
        return cloud_state.ImageState.NOT_SERVED, message
    if state is artefacts.State.FAILED:
        return cloud_state.ImageState.FAILED, message
    if why := image_record.why_not_served(record):
        return cloud_state.ImageState.NOT_SERVED, why
    is_begun = state is not None or now_s - _changed_s(record, now_s) < NEW_S
    return (
        cloud_state.ImageState.PREPARING if is_begun else cloud_state.ImageState.NOT_BEGUN,
        "",
    )


def _changed_s(record: image_record.Image, now_s: float) -> float:
    try:
        moment = datetime.datetime.fromisoformat(record.text("updated_at"))
    except ValueError:
        return now_s
    return moment.timestamp() if moment.tzinfo else now_s


def _stuck(row: models.HeldImage) -> cloud_state.UnfilledImage | None:
    fill = image_queries.fill_of(row)
    if fill is None or (fill.state not in STUCK and not fill.is_late):
        return None
    return cloud_state.UnfilledImage(
        host=row.host, image_id=row.image_id, why=fill.why or fill.state
    )


def _host_counts(seen: list[cloud_state.HostStatus]) -> HostCounts:
    up = [host for host in seen if host.is_up]
    versions = collections.Counter(host.health.version if host.health else "" for host in up)
    return HostCounts(
        up=len(up),
        overloaded=sum(host.is_overloaded for host in up),
        silent=sum(not host.is_up and not host.is_waiting for host in seen),
        waiting=sum(host.is_waiting for host in seen),
        drained=sum(host.is_drained for host in seen),
        versions=dict(versions.most_common(MAX_VERSIONS)),
    )


def _ring(
    published: ring_queries.Publication | None, seen: list[cloud_state.HostStatus]
) -> RingStatus | None:
    if published is None:
        return None
    return RingStatus(
        epoch=published.epoch,
        published_at=operation.utc_time(published.published_s),
        hosts=published.hosts,
        up_to_date_hosts=sum(host.is_up and host.epoch == published.epoch for host in seen),
    )


def _image_counts(images: list[cloud_state.ImageStatus], is_complete: bool) -> ImageCounts:
    states = collections.Counter(image.state for image in images)
    why = collections.Counter(
        image.why for image in images if image.state is cloud_state.ImageState.NOT_SERVED
    )
    return ImageCounts(
        ready=states[cloud_state.ImageState.READY],
        preparing=states[cloud_state.ImageState.PREPARING]
        + states[cloud_state.ImageState.NOT_BEGUN],
        failed=states[cloud_state.ImageState.FAILED],
        unsupported=dict(why.most_common(MAX_REASONS)),
        unsupported_total=why.total(),
        is_complete=is_complete,
    )


def _guest_counts(seen: list[cloud_state.HostStatus]) -> GuestCounts:
    reports = [host.health for host in seen if host.is_up and host.health is not None]
    fallbacks: collections.Counter[str] = collections.Counter()
    for report in reports:
        fallbacks.update(report.fallbacks)
    return GuestCounts(
        waiting_requests=sum(report.waiting for report in reports),
        longest_wait_s=max((report.longest_wait_s for report in reports), default=0.0),
        failed_reads=sum(report.failed_reads for report in reports),
        fallbacks=dict(fallbacks.most_common(decision_messages.MAX_REASONS)),
    )


OPERATIONS = (
    operation.Operation(
        "status:get",
        "GET",
        "/v1/status",
        "Show the status of the cloud, with findings and remedies",
        Status,
        show,
    ),
)
