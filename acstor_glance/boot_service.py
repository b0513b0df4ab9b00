# SPDX-License-Identifier: Apache-2.0
"""Has boot images made: of images that were just prepared, and of boots that agents recorded.

The one rule: a sender of traces costs a look at its message and no more.  What
follows is done by one thread of ours, an image at a time, and images that wait are
each in the queue once.
"""

import logging
import socket
import threading
from collections.abc import Iterable
from typing import Any

import oslo_messaging
from oslo_config import cfg

from acstor_common import decision_api
from acstor_common import errors
from acstor_common import ids
from acstor_common import trace_message
from acstor_glance import boot_images
from acstor_glance import work_queue

LOG = logging.getLogger(__name__)


class _Endpoint:
    """What agents may call, as oslo.messaging wants it."""

    target = oslo_messaging.Target(version=decision_api.VERSION)

    def __init__(self, service: "BootService") -> None:
        self._service = service

    def boot_traced(self, _context: object, payload: object = None) -> None:
        """Take the trace of one boot."""
        self._service.heard(payload)


class BootService:
    """The bus's server, which hears boot traces, and the thread that makes boot images.

    :param conf: the global configuration object: oslo.messaging works with no other
    """

    def __init__(self, conf: cfg.ConfigOpts, made: boot_images.BootImages) -> None:
        self._conf, self._made = conf, made
        self._queue = work_queue.WorkQueue()
        self._owed: set[ids.ImageId] = set()
        self._server: Any = None

    def start(self) -> None:
        """Begin to hear as soon as the broker answers; waits for nothing."""
        if self._conf.acstor_glance.boot_images in ("recorded", "both"):
            threading.Thread(target=self._serve, name="acstor-traces", daemon=True).start()
            for image_id in self._made.recorded():
                self._queue.put(image_id)
        threading.Thread(target=self._work, name="acstor-boot-images", daemon=True).start()

    def stop(self) -> None:
        """Hear no more."""
        self._queue.close()
        if self._server is not None:
            self._server.stop()

    def put(self, image_id: ids.ImageId) -> None:
        """Note that an image may need a boot image: its chunk map is new, or its build is due."""
        self._queue.put(image_id)

    def look_again(self, image_ids: Iterable[ids.ImageId]) -> None:
        """Make the boot images that are due, and those that something kept us from."""
        for image_id in image_ids:
            self._queue.put(image_id)
        while self._owed:
            self._queue.put(self._owed.pop())

    def heard(self, payload: object) -> None:
        """Take in a message, whatever it is."""
        try:
            image_id = self._made.traced(payload)
        except (errors.RemoteProtocolError, OSError) as exc:
            LOG.warning("a boot trace is of no use: %s", exc)
            return
        if image_id is not None:
            self._queue.put(image_id)

    def _serve(self) -> None:
        transport = oslo_messaging.get_rpc_transport(self._conf)
        target = oslo_messaging.Target(
            exchange=decision_api.EXCHANGE, topic=trace_message.TOPIC, server=socket.gethostname()
        )
        server = oslo_messaging.get_rpc_server(
            transport, target, [_Endpoint(self)], executor="threading"
        )
        server.start()
        self._server = server
        LOG.info("listening for boot traces")

    def _work(self) -> None:
        while (image_id := self._queue.take()) is not None:
            try:
                self._made.make(image_id)
            except errors.AcstorError as exc:
                LOG.warning("image %s: no boot image yet: %s", image_id, exc)
                self._owed.add(image_id)
            except Exception:
                LOG.exception("image %s: unexpected", image_id)
            finally:
                self._queue.done(image_id)
