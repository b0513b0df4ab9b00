# SPDX-License-Identifier: Apache-2.0
"""``acstor_prehash``: plugin of Glance's image import that makes the chunk map.

It never raises, since an image whose plugin fails stays in ``importing``; after any failure the
listener does the work. Glance knows the image's hash only after the import, so the chunk map waits
in the spool until a thread publishes it.
"""

import contextlib
import logging
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg
from taskflow import task
from taskflow.patterns import linear_flow

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.util import backoff
from acstor_glance import conf as glance_conf
from acstor_glance.client import glance_client
from acstor_glance.client import scope_lookup
from acstor_glance.prepare import image_file
from acstor_glance.prepare import image_preparer
from acstor_glance.prepare import map_spool
from acstor_glance.prepare import plan
from acstor_glance.prepare import preparation_budget
from acstor_glance.prepare import service_hashing

LOG = logging.getLogger(__name__)

NAME = "acstor_prehash"
CHECK_INTERVAL_S = 1.0
CHECK_INTERVAL_MAX_S = 30.0
MAX_PUBLISHING = 16  # images that wait at once in this process; each takes a thread
PUBLISH_DEADLINE_S = 3600.0  # wait for an image to become active; the listener publishes later ones


def get_flow(**context: Any) -> linear_flow.Flow:
    """Return the taskflow flow that Glance adds to each import."""
    task_id, task_type = context.get("task_id"), context.get("task_type")
    return linear_flow.Flow(task_type).add(
        HashStaged(
            f"{task_type}-{NAME}-{task_id}",
            ids.parse_image_id(str(context["image_id"])),
            context.get("action_wrapper"),
            cfg.CONF,
        )
    )


class HashStaged(task.Task):  # type: ignore[misc]  # taskflow has no type hints
    """Task that makes the chunk map of the staged file."""

    def __init__(
        self,
        name: str,
        image_id: ids.ImageId,
        wrapper: Any,
        conf: cfg.ConfigOpts,
        chunk_bytes: int = 0,
    ) -> None:
        super().__init__(name=name)
        self._image_id, self._wrapper, self._conf = image_id, wrapper, conf
        self._chunk_bytes = chunk_bytes or service_hashing.CHUNK_BYTES

    def execute(self, file_path: str, **_others: Any) -> None:
        """Make the chunk map; never raises, so the import continues."""
        try:
            self._execute(pathlib.Path(file_path.removeprefix("file://")))
        except Exception:  # a bug here must not end the import
            LOG.exception("image %s: left to the listener", self._image_id)

    def revert(self, **_others: Any) -> None:
        """Delete the chunk map: the next import may bring other bytes."""
        try:
            glance_conf.register_opts(self._conf)
            map_spool.MapSpool(glance_conf.state_dir(self._conf)).remove(self._image_id)
        except Exception:
            LOG.exception("image %s: keeping its pending chunk map", self._image_id)

    def _execute(self, staged: pathlib.Path) -> None:
        glance_conf.register_opts(self._conf)
        spool = map_spool.MapSpool(glance_conf.state_dir(self._conf))
        spool.remove(self._image_id)
        with self._wrapper as action:
            image = image_record.Image(
                id=self._image_id,
                disk_format=action.image_disk_format,
                container_format=action.image_container_format,
            )
        if image.disk_format in self._conf.acstor_glance.convert_formats:
            return  # the listener converts it after the import
        state, retry = artefacts.State.REFUSED, ""
        message = image_record.why_format_not_served(image)
        if not message:
            state, message, retry = self._hash(staged, image, spool)
        self._record_state(state, message, retry)
        if state is artefacts.State.HASHED and _may_publish(self._image_id):
            PublishThread(self._image_id, self._conf).start()

    def _record_state(self, state: artefacts.State, message: str, retry: str) -> None:
        properties = artefacts.state_properties(self._image_id, state, message, retry)
        try:
            with self._wrapper as action:
                action.set_image_extra_properties({k: v for k, v in properties.items() if v})
        except Exception as exc:  # a plugin has the rights of the importing tenant
            LOG.info("image %s: %s, not shown in its properties: %s", self._image_id, state, exc)

    def _hash(
        self, staged: pathlib.Path, image: image_record.Image, spool: map_spool.MapSpool
    ) -> tuple[artefacts.State, str, str]:
        ratio = self._conf.acstor_glance.max_expansion_ratio
        try:
            with image_file.translate_os_errors(staged):
                size_bytes = staged.stat().st_size
            budget = preparation_budget.PreparationBudget(
                f"image {self._image_id}", size_bytes, ratio
            )
            with self._naming() as naming:
                hashing = service_hashing.ServiceHashing(self._chunk_bytes, naming, budget=budget)
                map_path = spool.map_path(self._image_id)
                summary = hashing.hash_file(staged, map_path, image)
        except errors.NotRaw as exc:
            return artefacts.State.REFUSED, f"{exc.why}. {exc.remedy}", ""
        except errors.LimitExceeded as exc:
            LOG.warning("image %s: not prepared: %s", self._image_id, exc)
            spool.remove(self._image_id)
            why = f"{exc.why}. {exc.remedy}"
            return artefacts.State.FAILED, why, str(plan.Retry(1, None))
        except errors.AcstorError as exc:
            LOG.warning("image %s: left to the listener: %s", self._image_id, exc)
            spool.remove(self._image_id)
            return artefacts.State.FAILED, str(exc), ""
        LOG.info("image %s: %d chunks hashed in %.1f s",
                 self._image_id, summary.chunks, summary.seconds_s)  # fmt: skip
        return artefacts.State.HASHED, "", ""

    @contextlib.contextmanager
    def _naming(self) -> Iterator[deduplication.Naming]:
        """Yield the naming of chunks; only Glance's API has the image's visibility."""
        if self._conf.acstor_glance.dedup_scope == deduplication.DedupScope.CLOUD:
            yield deduplication.PLAIN
            return
        images = glance_client.connect(self._conf)
        image = images.get_image(self._image_id)
        with scope_lookup.ScopeLookup(images, self._conf).naming_of_image(image) as naming:
            yield naming


def _may_publish(image_id: ids.ImageId) -> bool:
    publishing = sum(isinstance(thread, PublishThread) for thread in threading.enumerate())
    if publishing >= MAX_PUBLISHING:
        LOG.info("image %s: left to the listener: %d others wait", image_id, publishing)
    return publishing < MAX_PUBLISHING


class PublishThread(threading.Thread):
    """Publishes the chunk map when its image is active; holds its lease against listeners."""

    def __init__(self, image_id: ids.ImageId, conf: cfg.ConfigOpts) -> None:
        super().__init__(name=f"acstor-publish-{image_id}", daemon=True)
        self._image_id, self._conf = image_id, conf

    def run(self) -> None:
        """Publish the chunk map, or leave the image to the listener."""
        try:
            images = glance_client.connect(self._conf)
            preparer = image_preparer.ImagePreparer(images, self._conf)
            with preparer.leases.lease_image(self._image_id) as is_ours:
                if is_ours and self._is_imported_in_time(images):
                    preparer.prepare_leased(self._image_id)
        except errors.AcstorError as exc:
            LOG.warning("image %s: left to the listener: %s", self._image_id, exc)
        except Exception:
            LOG.exception("image %s: left to the listener", self._image_id)

    def _is_imported_in_time(self, images: glance_client.GlanceClient) -> bool:
        """Return whether the image is active after its import, which rewrites properties."""
        deadline_s, checks = time.monotonic() + PUBLISH_DEADLINE_S, 0
        while time.monotonic() < deadline_s:
            image = images.read_or_none(self._image_id)
            if image is None:
                return False
            is_active = image.status == image_record.ACTIVE
            if is_active and image_record.IMPORT_TASK not in image.properties:
                return True
            time.sleep(backoff.pause_s(checks, CHECK_INTERVAL_S, CHECK_INTERVAL_MAX_S))
            checks += 1
        LOG.info("image %s: is not active yet; left to the listener", self._image_id)
        return False
