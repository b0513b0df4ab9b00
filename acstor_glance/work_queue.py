# SPDX-License-Identifier: Apache-2.0
"""Work queue: images that wait for a worker, shared fairly among projects."""

import collections
import enum
import threading
from collections.abc import Iterable
from typing import NamedTuple

from acstor_common.model import ids

MAX_QUEUED = 100_000
UNKNOWN_PROJECT = ""  # project of images that only a notification named; treated as one project


class Rank(enum.IntEnum):
    """Urgency of an image; the smallest value goes first."""

    BOOTED = 0  # hosts boot it, or an operator requested it
    NEW = 1  # a notification named it
    OLD = 2  # a reconcile found it


class QueuedImage(NamedTuple):
    """An image that a worker has taken from the queue."""

    image_id: ids.ImageId
    rank: Rank
    project: str


class _Project:
    def __init__(self) -> None:
        self.by_rank: dict[Rank, collections.OrderedDict[ids.ImageId, None]]
        self.by_rank = {rank: collections.OrderedDict() for rank in Rank}

    def __len__(self) -> int:
        return sum(map(len, self.by_rank.values()))

    @property
    def last_rank(self) -> Rank:
        return max(rank for rank, images in self.by_rank.items() if images)


class WorkQueue:
    """Queue of up to ``limit`` images for ``workers`` workers; each is queued once at most.

    Images with rank BOOTED go first, then one of the project with the fewest busy workers, then of
    the project served longest ago; within a project by rank and arrival. A project uses all workers
    but one at most.

    In a full queue, an image with rank BOOTED displaces a less urgent one, and one of a known
    project one of a project with more images. Images without a known project displace none, because
    any publisher on the message bus may name them.
    """

    def __init__(self, workers: int = 1, *, limit: int = MAX_QUEUED) -> None:
        self._limit = limit
        self._most_of_project = max(1, workers - 1)
        self._projects: collections.OrderedDict[str, _Project] = collections.OrderedDict()
        self._waiting: dict[ids.ImageId, tuple[str, Rank]] = {}
        self._working: dict[ids.ImageId, str] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def add_image(
        self, image_id: ids.ImageId, rank: Rank = Rank.NEW, project: str = UNKNOWN_PROJECT
    ) -> None:
        """Queue an image of a project; the rank of a queued image is never lowered."""
        with self._changed:
            before = self._waiting.get(image_id)
            if before is not None:
                project, rank = project or before[0], min(rank, before[1])
                if (project, rank) == before:
                    return
                self._remove(image_id)
            if self._has_room_for(project, rank):
                self._projects.setdefault(project, _Project()).by_rank[rank][image_id] = None
                self._waiting[image_id] = project, rank
            self._changed.notify()

    def _remove(self, image_id: ids.ImageId) -> None:
        project, rank = self._waiting.pop(image_id)
        del self._projects[project].by_rank[rank][image_id]
        if not self._projects[project]:
            del self._projects[project]

    def _has_room_for(self, project: str, rank: Rank) -> bool:
        if len(self._waiting) < self._limit:
            return True
        largest = max(self._projects.values(), key=len)
        own = len(self._projects.get(project, ()))
        is_fairer = project != UNKNOWN_PROJECT and len(largest) > own + 1
        is_urgent = rank is Rank.BOOTED and largest.last_rank > rank
        if not is_fairer and not is_urgent:
            return False
        self._remove(next(reversed(largest.by_rank[largest.last_rank])))
        return True

    def take_image(self) -> QueuedImage | None:
        """Wait for an image, and return it; None when the queue is closed."""
        with self._changed:
            while not self._is_closed:
                queued = self._next([Rank.BOOTED]) or self._next(Rank)
                if queued is not None:
                    self._remove(queued.image_id)
                    self._working[queued.image_id] = queued.project
                    if queued.project in self._projects:
                        self._projects.move_to_end(queued.project)
                    return queued
                self._changed.wait()
        return None

    def may_begin(self, queued: QueuedImage, project: str) -> bool:
        """Return whether ``queued`` is the owner's; else queue the image for its project."""
        if queued.project == project:
            return True
        self.add_image(queued.image_id, queued.rank, project)
        return False

    def _next(self, ranks: Iterable[Rank]) -> QueuedImage | None:
        ranks = list(ranks)
        workers = collections.Counter(self._working.values())
        for project in sorted(self._projects, key=lambda name: workers[name]):
            if workers[project] < self._most_of_project:
                for rank in ranks:
                    for image_id in self._projects[project].by_rank[rank]:
                        if image_id not in self._working:
                            return QueuedImage(image_id, rank, project)
        return None

    def finish_image(self, image_id: ids.ImageId) -> None:
        """Record that the worker has finished with the image."""
        with self._changed:
            self._working.pop(image_id, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Let every worker end after its current image."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def queue_sizes(self) -> tuple[int, int]:
        """Return the numbers of queued images and of busy workers."""
        with self._changed:
            return len(self._waiting), len(self._working)
