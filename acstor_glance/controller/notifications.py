# SPDX-License-Identifier: Apache-2.0
"""Glance's notifications, as ids of images that somebody should look at.

A message says only *that* something happened to an image.  What is to be done is
read from Glance itself, so false, late and doubled messages cost a look each and
no more.

oslo.messaging works only with the process's global configuration object.
"""

import logging
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import oslo_messaging
from oslo_config import cfg

from acstor_common.image import artefacts
from acstor_common.model import ids
from acstor_common.util import supervision
from acstor_common.wire import message_bus

LOG = logging.getLogger(__name__)

POOL = "acstor"
"""Name of the listeners' own queue, which all of them share: other consumers of the same topics get
every message, too."""
EVENTS = ("image.activate", "image.update", "image.delete")

Seen = Callable[[str, ids.ImageId], None]


class Endpoint:
    """What oslo.messaging calls; it takes every message and forgets it at once.

    :param seen: called with the event's type and the id of an image to look at
    """

    filter_rule = oslo_messaging.NotificationFilter(
        event_type="^(" + "|".join(event.replace(".", r"\.") for event in EVENTS) + ")$"
    )

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def info(
        self, context: Any, publisher_id: str, event_type: str, payload: Any, metadata: Any
    ) -> str:
        """Take one message."""
        for image_id in image_ids_of(event_type, payload):
            self._seen(event_type, image_id)
        return str(oslo_messaging.NotificationResult.HANDLED)


def image_ids_of(event_type: str, payload: Any) -> Iterator[ids.ImageId]:
    """Yield the images that a message of Glance gives reason to look at.

    What happens to an artefact is of interest to the image that it was made of, and only if the
    artefact is gone.
    """
    if not isinstance(payload, dict):
        return
    properties = payload.get("properties")
    of_image = properties.get(artefacts.OF_IMAGE) if isinstance(properties, dict) else None
    named = [payload.get("id")]
    if of_image and event_type == "image.delete":
        named.append(of_image)
    for text in named:
        try:
            yield ids.parse_image_id(str(text))
        except ValueError:
            LOG.debug("%s names no image: %.64r", event_type, text)


class NotificationListener:
    """A listener on the broker, in threads of its own; it outlives the broker being away.

    :param conf: the global configuration object
    :raises errors.Unusable: ``transport_url`` names no broker that oslo.messaging knows
    """

    def __init__(self, conf: cfg.ConfigOpts, seen: Seen) -> None:
        self._conf, self._seen = conf, seen
        self._listener: Any = None
        self._transport = message_bus.open_transport(
            conf, oslo_messaging.get_notification_transport
        )
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to listen as soon as the broker answers."""
        # Connecting waits for a broker that is away, so it must not keep others waiting.
        supervision.start("acstor-broker", self._start, self._stopping)

    def _start(self) -> None:
        own, topics = self._conf.acstor_glance, self._conf.oslo_messaging_notifications.topics
        targets = [
            oslo_messaging.Target(topic=topic, exchange=own.notification_exchange)
            for topic in topics
        ]
        named = ", ".join(topics)

        def make() -> Any:
            return oslo_messaging.get_notification_listener(
                self._transport,
                targets,
                [Endpoint(self._seen)],
                executor="threading",
                pool=POOL,
                allow_requeue=True,
            )

        self._listener = message_bus.start(
            make, named, self._stopping, message_bus.broker_of(self._transport)
        )
        if self._listener is not None:
            LOG.info("listening for notifications on topics %s", named)

    def stop(self) -> None:
        """Take no more messages; those that were not taken wait in the pool's queue.

        Waits for nothing: who hears nothing looks only every 5 s whether it is to end, as
        oslo.messaging has it with RabbitMQ.
        """
        self._stopping.set()
        if self._listener is not None:
            message_bus.close_in_background(self._listener.stop)
