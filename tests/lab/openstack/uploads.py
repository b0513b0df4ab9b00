# SPDX-License-Identifier: Apache-2.0
"""A client that uploads images to the lab's Glance and checks acstor's results."""

import contextlib
import hashlib
import json
import pathlib
import random
import urllib.request
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
from typing import Any

from openstack import exceptions

from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.lab import forked_commands
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import cloud
from tests.lab.openstack import glance as glance_service
from tests.lab.openstack import record_polling

DEADLINE_S = 60.0
PROTECTIONS = runs.CHECKOUT / "etc/glance/property-protections-roles.conf"
CHUNK = geometry.DEFAULT_CHUNK_BYTES


def some_bytes(chunks: int = 20, seed: int = 1) -> bytes:
    """Return an image's bytes: random, with a part of zeros; the last chunk is short."""
    dice = random.Random(seed)
    data = bytearray(dice.randbytes(chunks * CHUNK + 512))
    data[3 * CHUNK : 7 * CHUNK] = bytes(4 * CHUNK)
    return bytes(data)


def qcow2(folder: pathlib.Path, data: bytes, *options: str) -> bytes:
    """Return a compressed qcow2 image of the disk ``data``.

    :param options: further options of ``qemu-img convert``
    """
    raw, path = folder / "image.raw", folder / "image.qcow2"
    raw.write_bytes(data)
    runs.tool(["qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", *options, raw, path])
    return path.read_bytes()


def vdi(folder: pathlib.Path) -> bytes:
    """Return an image in a format that acstor does not serve."""
    path = folder / "image.vdi"
    runs.tool(["qemu-img", "create", "-q", "-f", "vdi", path, "8M"])
    return path.read_bytes()


@contextlib.contextmanager
def threaded(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run ``work`` in a thread beside the block; yield a function that waits for it."""
    with futures.ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield lambda: done.result(DEADLINE_S)


def check_names(found: chunk_map.ChunkMap, data: bytes, is_keyed: bool) -> None:
    """Check the content and the kind (keyed or not) of all chunk names."""
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    assert len(found) == len(chunks)
    for number, chunk in enumerate(chunks):
        if any(chunk):
            assert found.content_of(number).matches_data(chunk)
            assert ids.is_keyed(found.cid_of(number)) is is_keyed
        else:
            assert found.is_zero(number)


class Images:
    """A tenant that uploads, and an administrator that checks the results."""

    def __init__(self, lab: cloud.Cloud) -> None:
        self.lab = lab
        self.tenant, self.admin = lab.connect("tenant").image, lab.connect("admin").image
        self.project_id = accounts.kept_session(lab.keystone.auth_url, "acstor").get_project_id()
        self._made: list[str] = []

    def create(self, **options: Any) -> Any:
        wanted = {"disk_format": "raw", "container_format": "bare", "visibility": "private"}
        user = self.admin if options.get("visibility") == "public" else self.tenant
        name = f"test-{uuid.uuid4()}"
        image = user.create_image(name, allow_duplicates=True, **{**wanted, **options})
        self._made.append(image.id)
        return image

    def upload(self, data: bytes, **options: Any) -> str:
        """Upload directly, which the import plug-in does not see."""
        image_id: str = self.create(data=data, **options).id
        return image_id

    def upload_unseen(self, allowed: bytes, data: bytes, **options: Any) -> str:
        """Create an image that Glance's inspection of uploads would refuse.

        :param allowed: an accepted image, whose stored data ``data`` replaces
        """
        image_id = self.upload(allowed, **options)
        (self.lab.glance.images / image_id).write_bytes(data)
        value = hashlib.sha512(data).hexdigest()
        change = f"UPDATE images SET size = {len(data)}, os_hash_value = '{value}'"
        self.lab.mariadb.execute(f"{change} WHERE id = '{image_id}'", database="glance")
        return image_id

    def import_staged(self, data: bytes, **options: Any) -> str:
        """Upload by the import flow; return when the import is over."""
        image = self.create(**options)
        self.tenant.stage_image(image, data=data)
        self.tenant.import_image(image)
        self.wait(image.id, glance_service.is_imported, "the import")
        image_id: str = image.id
        return image_id

    def record(self, image_id: str) -> dict[str, Any]:
        answer = self.admin.get(f"/images/{image_id}")
        answer.raise_for_status()
        record: dict[str, Any] = answer.json()
        return record

    def image(self, image_id: str) -> image_record.Image:
        return image_record.Image.from_record(self.record(image_id))

    def exists(self, image_id: str) -> bool:
        return bool(self.admin.get(f"/images/{image_id}").status_code == 200)

    def wait(self, image_id: str, check: Callable[[dict[str, Any]], bool], what: str) -> dict:
        record: dict[str, Any] = {}

        def is_so() -> bool:
            record.clear()
            record.update(self.record(image_id))
            return check(record)

        def why() -> str:
            return f"{record}\n{self.glance_log()}"

        rows = record_polling.rows_of_image(image_id)
        record_polling.wait_for(self.lab.mariadb, rows, is_so, DEADLINE_S, what, why)
        return record

    def glance_log(self) -> str:
        """Return the end of Glance's log without requests."""
        lines = self.lab.glance.log().splitlines()
        return "\n".join([line for line in lines if "generated" not in line][-15:])

    def wait_state(self, image_id: str, state: str = "ready") -> dict[str, Any]:
        def has_state(record: dict[str, Any]) -> bool:
            found = artefacts.state_of(image_record.Image.from_record(record))
            return (found or "none") == state

        return self.wait(image_id, has_state, f"acstor_state {state}")

    def patch(
        self, image_id: str, user: str = "admin", **properties: str | bool | list[str]
    ) -> None:
        changes = [{"op": "add", "path": f"/{k}", "value": v} for k, v in properties.items()]
        answer = self.lab.connect(user).image.patch(
            f"/images/{image_id}",
            data=json.dumps(changes),
            headers={"Content-Type": "application/openstack-images-v2.1-json-patch"},
        )
        answer.raise_for_status()

    def artefacts(self) -> list[dict[str, Any]]:
        answer = self.admin.get(f"/images?os_hidden=true&owner={self.project_id}&limit=1000")
        return [record for record in answer.json()["images"] if "acstor_image_id" in record]

    def artefacts_of(self, image_id: str) -> list[dict[str, Any]]:
        return [record for record in self.artefacts() if record["acstor_image_id"] == image_id]

    def check_chunk_map(self, image_id: str, data: bytes) -> dict[str, Any]:
        """Check an image's chunk map; return the record of its artefact."""
        image = self.image(image_id)
        artefact = self.record(image.text(artefacts.Kind.CHUNK_MAP.pointer))
        parsed = image_record.Image.from_record(artefact)
        artefacts.check_belongs(
            image, parsed, artefacts.Kind.CHUNK_MAP, self.project_id, chunk_map.VERSION
        )
        assert (artefact["os_hidden"], artefact["visibility"]) == (True, "private")
        stored = self.admin.get(f"/images/{artefact['id']}/file").content
        found = artefacts.parse_chunk_map(image, stored)
        check_names(found, data, is_keyed=image.visibility in ("private", "shared"))
        assert [record["id"] for record in self.artefacts_of(image_id)] == [artefact["id"]]
        return artefact

    def delete(self, image_id: str) -> None:
        self.tenant.delete_image(image_id)

    def clean_up(self) -> None:
        for image_id in self._made:
            self.admin.delete_image(image_id, ignore_missing=True)
        for artefact in self.artefacts():
            # The listener may delete it at the same time: Glance then answers 400.
            with contextlib.suppress(exceptions.BadRequestException):
                self.admin.delete_image(artefact["id"], ignore_missing=True)


def manage(
    listener: acstor_glance.Listener,
    *words: str,
    status: int | None = 0,
    constants: tuned.Constants | None = None,
) -> list[dict[str, Any]]:
    """Run ``acstor-glance-manage`` with a listener's configuration; return its rows.

    :param status: the expected exit status; None: any
    :param constants: that differ from the product's
    """
    listener.configure()
    arguments = ["--config-file", listener.conf_file, "--json", *words]
    done = forked_commands.run(
        forked_commands.GLANCE_MANAGE, arguments, constants or {}, DEADLINE_S
    )
    assert status in (None, done.returncode), done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def checked(listener: acstor_glance.Listener, status: int | None = None) -> list[dict[str, Any]]:
    """Return the check's rows of images in use; ``status`` depends on all images."""
    return [row for row in manage(listener, "check", status=status) if "check" in row]


def counted(
    listener: acstor_glance.Listener, constants: tuned.Constants | None = None
) -> dict[str, dict[str, Any]]:
    """Return the number of images by state, as the check without a decision service."""
    rows = manage(listener, "check", status=3, constants=constants)
    return {row["reason"]: row for row in rows if "reason" in row}


def metric(listener: acstor_glance.Listener, line: str) -> float:
    """Return one value of the listener's Prometheus endpoint."""
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=20) as page:
        text = page.read().decode()
    values = [row.rpartition(" ")[2] for row in text.splitlines() if row.startswith(line + " ")]
    return float(values[0]) if values else 0.0
