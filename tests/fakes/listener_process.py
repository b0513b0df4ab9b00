# SPDX-License-Identifier: Apache-2.0
"""The listener in its own process, on images in memory.

Each file of a folder is an image, ``PROJECT.NAME.FORMAT``.  When the listener has prepared or
given up each image, the process prints the outcomes and the cost.
"""

import json
import pathlib
import resource
import subprocess
import sys
import threading
import time
from typing import Any

from oslo_config import cfg

from acstor_common.util import supervision
from acstor_glance import conf as glance_conf
from acstor_glance import metrics
from acstor_glance.controller import image_reconciler
from acstor_glance.controller import listener_service
from acstor_glance.controller import protection_reconciler
from acstor_glance.prepare import image_preparer
from tests.fakes import memory_images

RECONCILE_S = 1.0
PASSES_AFTER = 2
"""Further reconciles of each image after the last outcome: retries run in them."""


def run(folder: pathlib.Path, state_dir: pathlib.Path, **options: object) -> dict[str, Any]:
    """Run a listener until all images of a folder have outcomes; return its output."""
    reported = json.dumps({"state_dir": str(state_dir), **options})
    argv = [sys.executable, "-m", "tests.fakes.listener_process", str(folder), reported]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _images(folder: pathlib.Path) -> memory_images.MemoryImages:
    images = memory_images.MemoryImages()
    for path in sorted(folder.iterdir()):
        project, name, disk_format = path.name.split(".")
        images.add(path.read_bytes(), name=name, owner=project, disk_format=disk_format)
    return images


def main(folder: str, reported: str) -> None:
    """Serve until all images have outcomes."""
    conf, said = cfg.CONF, json.loads(reported)
    glance_conf.register_opts(conf)
    bus = pathlib.Path(said["state_dir"], "bus.conf")
    bus.write_text("[DEFAULT]\ntransport_url = fake:\n")
    conf([], default_config_files=[str(bus)], default_config_dirs=[])
    options = {"trusted_dir": folder, "protect_used_images": False, "dedup_scope": "cloud"}
    for name, value in {**options, **said}.items():
        conf.set_override(name, value, "acstor_glance")
    counters, images = metrics.ListenerMetrics(), _images(pathlib.Path(folder))
    tenants = list(images.records.values())
    prepared = image_preparer.ImagePreparer(images, conf, counters)
    found = image_reconciler.ImageReconciler(images, prepared.desired, builds_boot_images=False)
    guarded = protection_reconciler.ProtectionReconciler(conf, images, counters)
    made = listener_service.ListenerService(conf, prepared, found, counters, guarded)
    listener_service.RECONCILE_INTERVAL_S, began_s = RECONCILE_S, time.monotonic()
    ended: dict[str, float] = {}
    stopping = threading.Event()
    supervision.start("test-listener", made.run, stopping)
    while len(ended) < len(tenants):
        time.sleep(0.02)
        for image in tenants:
            if image.get("acstor_state") in ("ready", "failed", "refused"):
                ended.setdefault(image["name"], time.monotonic() - began_s)
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(PASSES_AFTER * RECONCILE_S)
    print(
        json.dumps(
            {
                "images": {
                    image["name"]: {
                        "state": image["acstor_state"],
                        "message": image.get("acstor_message", ""),
                        "retry": image.get("acstor_retry", ""),
                        "s": ended[image["name"]],
                        "artefact_bytes": sum(
                            one.size_bytes for one in images.list_artefacts(image["id"])
                        ),
                    }
                    for image in tenants
                },
                "cpu_s": cpu.ru_utime + cpu.ru_stime,
                "failed": counters.processed_images.labels("failed")._value.get(),
            }
        ),
        flush=True,
    )
    stopping.set()
    made.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
