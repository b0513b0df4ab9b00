# SPDX-License-Identifier: Apache-2.0
"""A cloud whose Glance has a store of each kind, and the gateway that reads them.

Services are those of production; :meth:`Place.start` restarts those that a test has stopped.
"""

import contextlib
import dataclasses
import random
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import http_server
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import api
from tests.lab.openstack import ceph
from tests.lab.openstack import cloud
from tests.lab.openstack import ini
from tests.lab.openstack import installed
from tests.lab.openstack import swift

MIB = 1 << 20
TIMEOUT_S = 2.0
READS = 2
REMEMBER_S = 30.0
DELETE_S = 45.0
STORES = ("fs", "s3", "swift", "rbd")
DATA = random.Random(17).randbytes(MIB + 777)
LARGE = random.Random(18).randbytes(9 * MIB + MIB // 2 + 5)
"""An S3 upload in several parts, a Swift one in segments, aligned to neither."""

_INTO_S3: ini.Sections = {"glance_store": {"default_backend": "s3"}}


@dataclasses.dataclass
class Place:
    """A cloud whose Glance has four stores, and its gateway."""

    lab: cloud.Cloud
    objects: swift.Swift
    ceph: ceph.Ceph | None
    gateway: acstor_gateway.Gateway

    def start(self) -> None:
        """Start stopped services, and wait until all are ready."""
        self.start_stores()
        self.gateway.start()
        self.gateway.wait_ready()

    def stores(self) -> ini.Sections:
        """Return Glance's options of its stores."""
        return acstor_gateway.stores(self.lab, self.objects, self.ceph)

    def start_stores(self) -> None:
        """Start Glance and its stores, if they are stopped."""
        self.lab.start_image_services()
        self.objects.start()
        if self.ceph:
            self.ceph.start()

    def token(self, user: str) -> str:
        return str(self.lab.session(user).get_token())

    def upload(self, store: str, data: bytes = DATA, **options: Any) -> ids.ImageId:
        """Upload a tenant's private image to a store; return its id."""
        if store == "rbd" and self.ceph is None:
            pytest.skip("Ceph is not installed: run tools/install.sh")
        record = {"disk_format": "raw", "container_format": "bare", "visibility": "private"}
        record |= {"name": f"test-{uuid.uuid4()}", **options}
        image_id = self.ask("tenant", "POST", "/v2/images", json=record).json()["id"]
        headers = {"Content-Type": "application/octet-stream", "X-Image-Meta-Store": store}
        path = f"/v2/images/{image_id}/file"
        # Chunked, as glanceclient does: with a known length, Glance's Swift driver cannot store a
        # shorter last segment (glance_store 5.7).
        self.ask("tenant", "PUT", path, data=iter([data]), headers=headers).raise_for_status()
        return ids.parse_image_id(image_id)

    def ask(self, user: str, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request to Glance."""
        return ask(self.lab, user, method, path, **options)

    def read(
        self,
        image_id: str,
        wanted: str = "bytes=0-99",
        user: str = "acstor",
        at: acstor_gateway.Gateway | None = None,
        token: str | None = None,
    ) -> requests.Response:
        """Read a range from the gateway, with a token; None: the user's."""
        headers = {"X-Auth-Token": token or self.token(user), "Range": wanted}
        url = f"{(at or self.gateway).url}/v1/images/{image_id}/file"
        return requests.get(url, headers=headers, timeout=30)

    def on_the_web(self, web: http_server.LocalServer, user: str = "admin") -> ids.ImageId:
        """Add an image with an HTTP location; return its id."""
        record = {"disk_format": "raw", "container_format": "bare", "name": "web"}
        image_id = self.ask(user, "POST", "/v2/images", json=record).json()["id"]
        where = {"url": f"{web.url}image"}
        self.ask(user, "POST", f"/v2/images/{image_id}/locations", json=where).raise_for_status()
        runs.wait_for(
            lambda: self.ask(user, "GET", f"/v2/images/{image_id}").json()["status"] == "active",
            30,
            "the image on the web",
            self.lab.glance.log,
        )
        return ids.parse_image_id(image_id)

    def s3(self, words: str) -> None:
        """Run Python code with an S3 client ``s3`` that has the store's credentials."""
        options = {
            "endpoint_url": self.objects.s3_url,
            "aws_access_key_id": swift.S3_USER,
            "aws_secret_access_key": api.PASSWORD,
        }
        script = f"import boto3; s3 = boto3.client('s3', **{options!r}); {words}"
        runs.tool([installed.BIN / "python", "-c", script])


def ask(lab: cloud.Cloud, user: str, method: str, path: str, **options: Any) -> requests.Response:
    """Send a request to Glance."""
    where = {"endpoint_filter": {"service_type": "image"}, "raise_exc": False}
    session = accounts.kept_session(lab.keystone.auth_url, user)
    return session.request(path, method, **where, **options)


def said(answer: requests.Response, status: int) -> str:
    """Return the message of an error with this status; it must contain no password."""
    assert answer.status_code == status, answer.text
    words: str = answer.json()["error"]["message"]
    assert api.PASSWORD not in words
    return words


@contextlib.contextmanager
def no_image_left(lab: cloud.Cloud, start: Callable[[], None]) -> Iterator[None]:
    """Delete, after the block, the images created in it.

    An image without its store cannot be deleted, and would break Glance's lists.  The deletion is
    retried for an image in use, as in Ceph for a while after a read.

    :param start: starts Glance and the stores, if a test has stopped them
    """

    def images() -> set[str]:
        path = "/v2/images?visibility=all&limit=1000&os_hidden="
        answers = [ask(lab, "admin", "GET", path + hidden).json() for hidden in ("false", "true")]
        return {image["id"] for answer in answers for image in answer["images"]}

    before = images()
    try:
        yield
    finally:
        start()
        ends_s = time.monotonic() + DELETE_S
        while (left := images() - before) and time.monotonic() < ends_s:
            for image_id in left:
                ask(lab, "admin", "DELETE", f"/v2/images/{image_id}")
            time.sleep(1.0)
        if left:
            raise errors.Unusable("Glance", f"cannot delete {', '.join(sorted(left))}")


@contextlib.contextmanager
def running(lab: cloud.Cloud) -> Iterator[Place]:
    """Run a cloud with all stores and a gateway for the block."""
    lab.start_image_services()
    objects = swift.Swift(lab.folder, lab.keystone)
    cluster = ceph.Ceph(lab.folder) if ceph.is_installed() else None
    bounds = {tuned.GATEWAY_TIMEOUT_S: TIMEOUT_S, tuned.GATEWAY_READS: READS}
    served = acstor_gateway.Gateway(lab, lab.folder, constants=bounds, auth_cache_s=REMEMBER_S)
    try:
        objects.start()
        objects.register(lab.connect().identity)
        if cluster:
            cluster.start()
        made = Place(lab, objects, cluster, served)
        with lab.glance.changed(made.stores()), no_image_left(lab, made.start_stores):
            served.start()
            served.wait_ready()
            served.register()
            yield made
    finally:
        for part in (served, objects, *([cluster] if cluster else ())):
            part.stop()
        for part in (objects, *([cluster] if cluster else ())):
            part.wipe()


@contextlib.contextmanager
def images_in_s3(lab: cloud.Cloud) -> Iterator[acstor_gateway.Gateway]:
    """Let Glance store uploads in S3 for the block; yield the gateway.

    Images are not converted or copied: all reads go through Glance or the gateway, which have the
    store's credentials.  Keystone's catalog has the gateway.  It restarts Glance, which must run.

    :raises errors.Unusable: a server does not start; has the end of its log
    """
    objects = swift.Swift(lab.folder, lab.keystone)
    gateway = acstor_gateway.Gateway(lab, lab.folder)
    stores = ini.merged(acstor_gateway.stores(lab, objects, None), _INTO_S3)

    def start() -> None:
        lab.start_image_services()
        objects.start()

    try:
        objects.start()
        objects.register(lab.connect().identity)
        with lab.glance.changed(stores), no_image_left(lab, start):
            gateway.start()
            gateway.wait_ready()
            gateway.register()
            yield gateway
    finally:
        gateway.stop()
        objects.stop()
        objects.wipe()
