# SPDX-License-Identifier: Apache-2.0
"""Reports of other hosts about their shares of the images used here; only recent ones count."""

from collections.abc import Collection
from collections.abc import Iterable
from typing import NamedTuple

from acstor_agent.core.images import replica_leases
from acstor_common.model import ids
from acstor_common.wire.peer import replica_messages

INTERVAL_S = 60.0  # interval of requests to one host, where there are few hosts
PER_HOST_S = 0.25
"""The interval grows by this per host: at most four messages a second, besides those with
changes."""
CONFIRMED_TIMES = 3  # an answer expires after this many intervals
TAKEN_BACK_TIMES = 3  # how often the end of a lease is repeated, because messages may be lost
AT_A_TIME = 16  # hosts addressed at once, because each may need a new connection

_State = replica_messages.ShareState
_WHY = {
    _State.NO_ROOM: "its cache has no space for its share",
    _State.FAILING: "data that its share lacks is unavailable now",
    _State.REFUSED: "its source has no such image",
    _State.CROWDED: "it has reached its limit of images for other hosts",
}

_TOO_MANY = (
    f"more than {replica_leases.MAX_IMAGES_PER_HOST} images are used here, so it is not replicated"
)


class Report(NamedTuple):
    """State of the other hosts' shares of one image."""

    hosts: int
    confirmed: int  # hosts that recently confirmed their whole share
    total_bytes: int  # of the shares of hosts that answered
    kept_bytes: int
    state: _State  # first problem of a host; KEPT if there is none
    why: str  # host and problem in words; empty if there is none


class _HostReport(NamedTuple):
    ring_epoch: int
    share: replica_messages.ImageShare
    at_s: float


class ReplicaHolders:
    """The hosts that keep shares for this one."""

    def __init__(self, min_interval_s: float = INTERVAL_S) -> None:
        self._min_interval_s = min_interval_s
        self._used: dict[ids.ImageId, None] = {}
        self._all_used: frozenset[ids.ImageId] = frozenset()
        self._requested: dict[ids.HostId, dict[ids.ImageId, int]] = {}
        """Images requested of each host, with the remaining repetitions of the end of a lease."""
        self._due_s: dict[ids.HostId, float] = {}
        """In round-robin order: the host addressed last is last."""
        self._answers: dict[ids.ImageId, dict[ids.HostId, _HostReport]] = {}

    @property
    def every_s(self) -> float:
        """Interval of requests to each host."""
        return max(self._min_interval_s, PER_HOST_S * len(self._due_s))

    def set_images(
        self, hosts: Iterable[ids.HostId], used: Iterable[ids.ImageId], now_s: float
    ) -> None:
        """Set the hosts and images, up to the limit of images per host."""
        self._all_used = frozenset(used := list(used))
        now_used = dict.fromkeys(used[: replica_leases.MAX_IMAGES_PER_HOST])
        wanted = dict.fromkeys(hosts)
        due_s = {host: at_s for host, at_s in self._due_s.items() if host in wanted}
        due_s |= {host: now_s for host in wanted if host not in due_s}
        if now_used.keys() != self._used.keys():
            due_s = dict.fromkeys(due_s, now_s)
        self._used, self._due_s = now_used, due_s
        for host in self._requested.keys() - due_s.keys():  # its leases end by themselves
            del self._requested[host]
        for image_id in self._answers.keys() - now_used.keys():
            del self._answers[image_id]
        for answers in self._answers.values():
            for host in answers.keys() - due_s.keys():
                del answers[host]

    def shares_changed(self, now_s: float) -> None:
        """Make all hosts due, because the shares changed."""
        self._due_s = dict.fromkeys(self._due_s, now_s)

    def take_due(self, now_s: float) -> list[tuple[ids.HostId, replica_messages.ReplicaRequest]]:
        """Return the requests that are due, and schedule the next ones."""
        found = []
        for host in [host for host, due_s in self._due_s.items() if due_s <= now_s][:AT_A_TIME]:
            requested = self._requested.setdefault(host, {})
            ended = [image_id for image_id in requested if image_id not in self._used]
            fresh = [leased_id for leased_id in ended if requested[leased_id] == TAKEN_BACK_TIMES]
            entries = [replica_messages.Lease(image_id, 0) for image_id in fresh]
            entries += [
                replica_messages.Lease(leased_id, int(replica_leases.MAX_LEASE_S))
                for leased_id in self._used
            ]
            is_all = len(entries) <= replica_messages.MAX_REQUESTS
            again = [image_id for image_id in ended if requested[image_id] < TAKEN_BACK_TIMES]
            entries += [replica_messages.Lease(image_id, 0) for image_id in again]
            most = replica_messages.MAX_REQUESTS
            now = entries if is_all else entries[:most]
            for lease in now:
                requested[lease.image_id] = (
                    TAKEN_BACK_TIMES if lease.lease_s else requested[lease.image_id] - 1
                )
                if not requested[lease.image_id]:
                    del requested[lease.image_id]
            again_s = now_s + self.every_s if is_all else now_s
            del self._due_s[host]  # to the end
            self._due_s[host] = again_s
            for at in range(0, len(now), most):  # several if many leases have ended
                found.append((host, replica_messages.ReplicaRequest(tuple(now[at : at + most]))))
        return found

    def record_report(
        self, host: ids.HostId, kept: replica_messages.ReplicaReport, now_s: float
    ) -> None:
        """Record a host's report; images that it was not asked for are ignored."""
        if host not in self._due_s:
            return
        for share in kept.shares:
            if share.image_id in self._used:
                answers = self._answers.setdefault(share.image_id, {})
                answers[host] = _HostReport(kept.ring_epoch, share, now_s)

    def report_shares(
        self, image_id: ids.ImageId, hosts: Collection[ids.HostId], ring_epoch: int, now_s: float
    ) -> Report:
        """Return the state of the other hosts' shares; any thread may call it."""
        if image_id in self._all_used and image_id not in self._used:
            return Report(len(hosts), 0, 0, 0, _State.CROWDED, _TOO_MANY)
        answers = self._answers.get(image_id, {}).copy()
        confirmed = total_bytes = kept_bytes = 0
        worst, why = _State.KEPT, ""
        for host in hosts:
            answer = answers.get(host)
            if answer is None or now_s - answer.at_s > CONFIRMED_TIMES * self.every_s:
                why = why or f"{host} has not answered"
                continue
            state, share = answer.share.state, answer.share
            if state is not _State.KEPT:
                if worst is _State.KEPT:
                    worst, why = state, f"{host}: {_WHY[state]}"
            elif answer.ring_epoch != ring_epoch:
                why = why or f"{host} has another v-node table"
            else:
                total_bytes += share.total_bytes
                kept_bytes += share.total_bytes - share.left_bytes
                confirmed += not share.left_bytes
        return Report(len(hosts), confirmed, total_bytes, kept_bytes, worst, why)


class CloudProgress(NamedTuple):
    """State of an image in the cloud."""

    total_bytes: int
    left_bytes: int | None  # bytes that no host confirmed; None if unknown
    is_whole: bool
    trouble: _State  # first problem of a host; KEPT if there is none
    why: str


def cloud_progress(
    report: Report, copies: int, image_bytes: int, own_bytes: int, own_left_bytes: int | None
) -> CloudProgress:
    """Return the state of an image in the cloud; ``own_left_bytes`` None: not counted yet."""
    total_bytes = copies * image_bytes
    if own_left_bytes is None:
        return CloudProgress(total_bytes, None, False, report.state, report.why)
    kept_bytes = own_bytes - own_left_bytes + report.kept_bytes
    is_done = report.confirmed == report.hosts and not own_left_bytes
    is_whole = is_done and own_bytes + report.total_bytes >= total_bytes
    trouble, why = report.state, report.why
    if is_done and not is_whole:
        trouble, why = _State.FAILING, "the shares of all hosts do not cover the image"
    elif is_whole and copies == 1:
        why = "there is one copy: no other host has v-nodes"
    left_bytes = 0 if is_whole else max(0, total_bytes - kept_bytes)
    return CloudProgress(total_bytes, left_bytes, is_whole, trouble, why)
