# SPDX-License-Identifier: Apache-2.0
"""A client that sends deltas to the gateway, at any speed.

Deltas are those that acstor on a compute host sends, or are corrupted by the test itself.
"""

import contextlib
import dataclasses
import json
import pathlib
import random
import socket
import uuid
from collections.abc import Iterator
from typing import Any
from urllib import parse

import requests

from acstor_common.disks import disk_delta
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from tests.fakes import qcow2_readers
from tests.lab import runs
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import image_stores
from tests.lab.openstack import record_polling

KIB, MIB = 1 << 10, 1 << 20
DEADLINE_S = 60.0
DATA, ZERO = disk_delta.ExtentKind.DATA, disk_delta.ExtentKind.ZERO


@dataclasses.dataclass
class Disk:
    """A disk with its backing image and its changes.

    :param base: the guest's view of the backing image
    :param size: of the disk
    """

    base: bytes
    size: int
    found: list[disk_delta.Extent] = dataclasses.field(default_factory=list)
    seed: int = 1

    @property
    def table(self) -> disk_delta.ExtentTable:
        return disk_delta.ExtentTable.from_runs(self.found, self.size)

    @property
    def data(self) -> bytes:
        """The bytes of the data extents."""
        return random.Random(self.seed).randbytes(self.table.data_bytes)

    @property
    def content(self) -> bytes:
        """The guest's view."""
        content, data = bytearray(self.base[: self.size].ljust(self.size, b"\0")), self.data
        for change in self.table:
            if change.kind is DATA:
                content[change.at : change.stop], data = (
                    data[: change.length],
                    data[change.length :],
                )
            else:
                content[change.at : change.stop] = bytes(change.length)
        return bytes(content)

    def stream(
        self, base: ids.ImageId, os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH
    ) -> bytes:
        """Return the encoded delta."""
        writer, data = disk_delta.Writer(self.size, base, os_hash, self.table), self.data
        writer.hash_data(data)
        return writer.front + data + writer.make_trailer()


def some_base(length: int, seed: int = 7) -> bytes:
    """Return bytes that compress to about a half, with a hole."""
    dice = random.Random(seed)
    data = bytearray(b"".join(dice.randbytes(512) * 2 for _ in range(-(-length // 1024)))[:length])
    data[length // 4 : length // 2] = bytes(length // 2 - length // 4)
    return bytes(data)


@dataclasses.dataclass
class Sender:
    """A user of a cloud, and a gateway.

    :param user: whose token it uses
    """

    place: image_stores.Place
    gateway: acstor_gateway.Gateway
    user: str = "tenant"

    def queued(self, disk_format: str = "qcow2", **options: Any) -> ids.ImageId:
        """Create an image without data; return its id."""
        record = {"disk_format": disk_format, "container_format": "bare"}
        record |= {"name": f"test-{uuid.uuid4()}", **options}
        made = self.place.ask(self.user, "POST", "/v2/images", json=record)
        return ids.parse_image_id(made.json()["id"])

    def record(self, image_id: str) -> dict[str, Any]:
        """Return an image's record in Glance."""
        answer = self.place.ask("admin", "GET", f"/v2/images/{image_id}")
        record: dict[str, Any] = answer.json()
        return record

    def status(self, image_id: str) -> str:
        return str(self.record(image_id)["status"])

    def wait_status(self, image_id: str, status: str, deadline_s: float = 30.0) -> None:
        record_polling.wait_for(
            self.place.lab.mariadb,
            record_polling.rows_of_image(image_id),
            lambda: self.status(image_id) == status,
            deadline_s,
            status,
            self.gateway.log,
        )

    def url(self, image_id: str, disk_format: str = "qcow2") -> str:
        return f"{self.gateway.url}/v1/images/{image_id}/delta?format={disk_format}"

    def send(
        self, image_id: str, stream: Any, disk_format: str = "qcow2", **headers: str
    ) -> requests.Response:
        """Send a delta; return the complete response."""
        return requests.put(
            self.url(image_id, disk_format),
            data=stream,
            headers={"X-Auth-Token": self.place.token(self.user), **headers},
            timeout=DEADLINE_S,
        )

    def compose(self, disk: Disk, base: ids.ImageId, disk_format: str = "qcow2") -> ids.ImageId:
        """Create a flattened image; return its id."""
        image_id = self.queued(disk_format)
        last = lines_of(self.send(image_id, disk.stream(base), disk_format))[-1]
        assert last["state"] == "done", last
        assert (last["size"], "active") == (
            self.record(image_id)["size"],
            self.record(image_id)["status"],
        )
        return image_id

    def download(self, image_id: str) -> bytes:
        """Return an image's bytes as Glance serves them."""
        answer = self.place.ask(self.user, "GET", f"/v2/images/{image_id}/file")
        answer.raise_for_status()
        return answer.content

    @contextlib.contextmanager
    def slowly(
        self, image_id: str, length_bytes: int, disk_format: str = "qcow2"
    ) -> Iterator[socket.socket]:
        """Yield a connection after a request's head; the test sends the body."""
        where = parse.urlparse(self.url(image_id, disk_format))
        with socket.create_connection((where.hostname, where.port), DEADLINE_S) as link:
            link.sendall(
                f"PUT {where.path}?{where.query} HTTP/1.1\r\nHost: {where.netloc}\r\n"
                f"X-Auth-Token: {self.place.token(self.user)}\r\n"
                f"Content-Length: {length_bytes}\r\n\r\n".encode()
            )
            yield link

    def counted(self, outcome: str) -> float:
        """Return the number of flatten jobs with this outcome."""
        return self.gateway.counted("flatten_jobs_total", outcome=outcome)


def lines_of(answer: requests.Response) -> list[dict[str, Any]]:
    """Return the lines of a response with status 200."""
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def rest_of(link: socket.socket) -> str:
    """Return all further bytes of a connection."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := link.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def check_qcow2(folder: pathlib.Path, image: bytes, content: bytes) -> dict[str, Any]:
    """Check with QEMU's tools that a file is valid and its disk is ``content``.

    :return: output of ``qemu-img check``
    """
    made, wanted = folder / "made.qcow2", folder / "wanted.raw"
    made.write_bytes(image)
    wanted.write_bytes(content)
    runs.tool(["qemu-img", "compare", "-f", "qcow2", "-F", "raw", made, wanted])
    said: dict[str, Any] = json.loads(
        runs.tool(["qemu-img", "check", "--output=json", "-f", "qcow2", made])
    )
    assert not said.get("corruptions")
    assert not said.get("leaks")
    qcow2_readers.check(made, content)
    return said
