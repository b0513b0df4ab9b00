# SPDX-License-Identifier: Apache-2.0
"""A notification names images to check; its other content is not trusted."""

import pathlib
import threading

import oslo_messaging
import pytest

from acstor_glance.controller import notifications
from tests.fakes import glance_options
from tests.fakes import glance_records as records

OTHER_ID = "0c9e3f7a-1111-4222-8333-444455556666"


def images_of(event: str, payload: object) -> list[str]:
    return list(notifications.image_ids_of(event, payload))


def test_message_names_its_image() -> None:
    assert images_of("image.activate", {"id": OTHER_ID, "properties": {}}) == [OTHER_ID]


def test_deleted_artefact_names_the_image_that_lost_it() -> None:
    payload = {"id": OTHER_ID, "properties": {"acstor_image_id": records.IMAGE_ID}}
    assert images_of("image.delete", payload) == [OTHER_ID, records.IMAGE_ID]
    assert images_of("image.activate", payload) == [OTHER_ID]


@pytest.mark.parametrize(
    "payload",
    [None, "text", [], {}, {"id": 7}, {"id": "../x"}, {"properties": "x"}, {"properties": None}],
)
def test_message_that_names_no_image_is_dropped(payload: object) -> None:
    assert images_of("image.delete", payload) == []


def test_endpoint_passes_images_on_and_acknowledges_the_message() -> None:
    seen: list[tuple[str, str]] = []
    endpoint = notifications.Endpoint(lambda event, image_id: seen.append((event, image_id)))
    payload = {"id": OTHER_ID}
    assert endpoint.info({}, "image.host", "image.update", payload, {}) == "handled"
    assert seen == [("image.update", OTHER_ID)]


@pytest.mark.parametrize(
    ("event", "is_taken"),
    [
        ("image.activate", True),
        ("image.delete", True),
        ("image.send", False),
        ("image.update.x", False),
    ],
)
def test_only_events_that_change_images_are_handled(event: str, is_taken: bool) -> None:
    rule = notifications.Endpoint.filter_rule
    assert rule.match({}, "image.host", event, {}, {}) is is_taken


def test_notifications_on_the_configured_topics_are_received(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "listener.conf"
    path.write_text(
        "[DEFAULT]\ntransport_url = kombu+memory:////\n"
        "[oslo_messaging_notifications]\ntopics = for-acstor\n"
    )
    conf = glance_options.conf(path)
    received = threading.Event()
    seen: list[tuple[str, str]] = []

    def see(event: str, image_id: str) -> None:
        seen.append((event, image_id))
        received.set()

    listening = notifications.NotificationListener(conf, see)
    listening.start()
    conf.set_override("control_exchange", notifications.EXCHANGE)  # Glance's default
    transport = oslo_messaging.get_notification_transport(conf)
    try:
        teller = oslo_messaging.Notifier(
            transport, "image.host", driver="messagingv2", topics=["for-acstor"]
        )
        for _ in range(50):  # it may not listen yet
            teller.info({}, "image.update", {"id": OTHER_ID})
            if received.wait(0.2):
                break
    finally:
        listening.stop()
        transport.cleanup()
    assert seen[0] == ("image.update", OTHER_ID)
