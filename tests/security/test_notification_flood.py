# SPDX-License-Identifier: Apache-2.0
"""A publisher on the broker names 100,000 images; tenants' images must not wait.

The listener is real, with its threads; Glance is in memory and takes 3 ms for each request.

"""

import threading
import time
import uuid

import pytest

from acstor_glance import metrics
from acstor_glance.controller import hint_queue
from acstor_glance.controller import image_reconciler
from acstor_glance.controller import listener_service
from acstor_glance.controller import notifications
from acstor_glance.controller import protection_reconciler
from acstor_glance.prepare import image_preparer
from tests.fakes import glance_options
from tests.fakes import memory_images
from tests.lab import local

LOOK_S = 0.003
NAMED, OWN = 100_000, 10
BOUND_S = 20.0
"""Ten images take 0.3 s at rest; requests for all forged ones would take five minutes."""


class SlowImages(memory_images.MemoryImages):
    def get_image(self, image_id):
        time.sleep(LOOK_S)
        return super().get_image(image_id)


@pytest.mark.allow_log("the needed images|the trusted keys")
def test_flood_of_forged_image_ids_does_not_delay_tenants(tmp_path):
    conf, images = glance_options.conf(state_dir=tmp_path), SlowImages()
    counters = metrics.ListenerMetrics()
    preparing = image_preparer.ImagePreparer(images, conf, counters)
    looking = image_reconciler.ImageReconciler(images, preparing.desired, builds_boot_images=False)
    guard = protection_reconciler.ProtectionReconciler(conf, images, counters)
    service = listener_service.ListenerService(conf, preparing, looking, counters, guard)
    threads = [threading.Thread(target=run) for run in (service._work, service._check_hints)]
    for thread in threads:
        thread.start()
    flooding = threading.Event()
    try:
        endpoint = notifications.Endpoint(service._on_notification)

        def flood() -> None:
            for number in range(NAMED):
                named = {"id": str(uuid.UUID(int=number))}
                endpoint.info({}, "anybody", "image.update", named, {})
            flooding.set()

        threads.append(threading.Thread(target=flood))
        threads[-1].start()
        own = [images.add(local.random_bytes(65536)) for _ in range(OWN)]
        began_s = time.monotonic()
        service._reconcile()
        while any(image.get("acstor_state") != "ready" for image in own):
            assert time.monotonic() < began_s + BOUND_S
            time.sleep(0.05)
        assert flooding.wait(60)
        assert sum(service._queue.queue_sizes()) <= OWN
        assert len(service._hints._waiting) <= hint_queue.MAX_HINTS
    finally:
        service._queue.close()
        service._hints.close()
        for thread in threads:
            thread.join(60)
