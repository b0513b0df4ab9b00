# SPDX-License-Identifier: Apache-2.0
"""P9b: the time of an import into Glance with the plug-in, over that without.

A real Keystone, Glance (file store) and RabbitMQ on loopback.  One random image is staged
repeatedly; measured is the time from its import request until it is active.  Both ways take turns,
under the same machine load; the ratio is that of the medians.
"""

import os
import pathlib
import statistics
import time
import uuid
from collections.abc import Iterator

from acstor_common.model import geometry
from evaluation.bench import harness
from tests.lab import local
from tests.lab import runs
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import cloud
from tests.lab.openstack import glance
from tests.lab.openstack import installed

IMAGE_BYTES = 512 * geometry.MIB
TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "3"))
IMPORTS = 3
CHECK_INTERVAL_S = 0.02
DEADLINE_S = 600.0


@harness.measures("P9b")
def run(say: harness.Say) -> harness.Result:
    """Import with and without the plugin in turns."""
    if not installed.is_ready():
        raise harness.CannotRun(f"the services of OpenStack are not installed: {installed.REMEDY}")
    with runs.Run() as folders:
        lab = cloud.Cloud(folders.folder / "openstack")
        try:
            lab.start_image_services()
            took_s = measure(lab, folders.folder, say)
        finally:
            lab.stop()
    ratio = statistics.median(took_s["with"]) / statistics.median(took_s["without"])
    fastest = min(took_s["with"]) / min(took_s["without"])
    say(f"with over without the plugin: median {ratio:.2f}, fastest {fastest:.2f}")
    details = {"image_bytes": IMAGE_BYTES, "imports_s": took_s, "fastest": fastest}
    return harness.Result({"P9b": ratio}, details)


def measure(lab: cloud.Cloud, folder: pathlib.Path, say: harness.Say) -> dict[str, list[float]]:
    """Return the time of each import, with and without the plug-in."""
    image = folder / "image.raw"
    image.write_bytes(local.random_bytes(IMAGE_BYTES))
    took_s: dict[str, list[float]] = {"without": [], "with": []}
    plugin = acstor_glance.plugin_sections(lab, folder / "state")
    for turn in range(TURNS):
        for way, sections in (("without", {}), ("with", plugin)):
            with lab.glance.changed(sections):
                import_once(lab, image)  # the first one after a start loads modules
                took_s[way] += [import_once(lab, image) for _ in range(IMPORTS)]
            shown = ", ".join(f"{one:.2f}" for one in took_s[way][-IMPORTS:])
            say(f"turn {turn + 1}, {way} the plugin: {shown} s")
    return took_s


def import_once(lab: cloud.Cloud, path: pathlib.Path) -> float:
    """Stage the image, import it, delete it; return the import's seconds."""
    images = lab.connect("tenant").image
    image = images.create_image(
        name=f"p9b-{uuid.uuid4()}", disk_format="raw", container_format="bare"
    )
    with path.open("rb") as file:
        images.stage_image(image, data=file)
    started_s = time.perf_counter()
    images.import_image(image)
    for _ in looks():
        if images.get_image(image.id).status == "active":
            break
    took_s = time.perf_counter() - started_s
    for _ in looks():
        if glance.is_imported(images.get(f"/images/{image.id}").json()):
            break
    wait_until_idle(lab)
    images.delete_image(image.id)
    return took_s


def wait_until_idle(lab: cloud.Cloud) -> None:
    """Wait until the publishing thread of this import ends, for the next import."""
    project_id = lab.session("acstor").get_project_id()
    for _ in looks():
        answer = lab.connect().image.get(f"/images?os_hidden=true&owner={project_id}").json()
        if all(image["status"] == "active" for image in answer["images"]):
            return


def looks() -> Iterator[None]:
    """Yield repeatedly until the deadline.

    :raises harness.CannotRun: at the deadline
    """
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        yield
        time.sleep(CHECK_INTERVAL_S)
    raise harness.CannotRun(f"Glance did not finish within {DEADLINE_S:g} s")
