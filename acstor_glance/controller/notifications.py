# SPDX-License-Identifier: Apache-2.0
"""Listens for Glance's notifications; uses only image IDs, so false ones do no harm."""

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

POOL = "acstor"  # queue of all listeners; other consumers of the topics get every message too
EXCHANGE = "glance"  # Glance's own [DEFAULT] control_exchange
EVENTS = ("image.activate", "image.update", "image.delete")

OnNotification = Callable[[str, ids.ImageId], None]


class Endpoint:
    """Endpoint for oslo.messaging."""

    filter_rule = oslo_messaging.NotificationFilter(
        event_type="^(" + "|".join(event.replace(".", r"\.") for event in EVENTS) + ")$"
    )

    def __init__(self, on_notification: OnNotification) -> None:
        self._on_notification = on_notification

    def info(
        self, context: Any, publisher_id: str, event_type: str, payload: Any, metadata: Any
    ) -> str:
        """Handle one message."""
        for image_id in image_ids_of(event_type, payload):
            self._on_notification(event_type, image_id)
        return str(oslo_messaging.NotificationResult.HANDLED)


def image_ids_of(event_type: str, payload: Any) -> Iterator[ids.ImageId]:
    """Yield the IDs of images to look at; a deleted artefact also names its image."""
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
    """Listener on the broker, in its own threads; survives outages of the broker."""

    def __init__(self, conf: cfg.ConfigOpts, on_notification: OnNotification) -> None:
        self._conf, self._on_notification = conf, on_notification
        self._listener: Any = None
        self._transport = message_bus.open_transport(
            conf, oslo_messaging.get_notification_transport
        )
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start listening in the background, as soon as the broker answers."""
        supervision.start("acstor-broker", self._start, self._stopping)

    def _start(self) -> None:
        topics = self._conf.oslo_messaging_notifications.topics
        targets = [oslo_messaging.Target(topic=topic, exchange=EXCHANGE) for topic in topics]
        named = ", ".join(topics)

        def make() -> Any:
            return oslo_messaging.get_notification_listener(
                self._transport,
                targets,
                [Endpoint(self._on_notification)],
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
        """Stop in the background; oslo.messaging's RabbitMQ driver takes up to 5 s."""
        self._stopping.set()
        if self._listener is not None:
            message_bus.close_in_background(self._listener.stop)
