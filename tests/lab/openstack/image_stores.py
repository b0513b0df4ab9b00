# SPDX-License-Identifier: Apache-2.0
"""A cloud whose Glance has a store of each kind, and the gateway that reads them.

The rule: what stands here is what operators run; tests change it through its parts, and
:meth:`Place.start` brings up again whatever a test has ended.
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
"""Uploaded to S3 in several parts, to Swift in segments, and not aligned to either."""

_INTO_S3: ini.Sections = {"glance_store": {"default_backend": "s3"}}


@dataclasses.dataclass
class Place:
    """A cloud whose Glance has four stores, and its gateway."""

    lab: cloud.Cloud
    objects: swift.Swift
    ceph: ceph.Ceph | None
    gateway: acstor_gateway.Gateway

    def start(self) -> None:
        """Start what does not run, and wait until it serves."""
        self.start_stores()
        self.gateway.start()
        self.gateway.wait_ready()

    def stores(self) -> ini.Sections:
        """Return what Glance's configuration says of its stores."""
        return acstor_gateway.stores(self.lab, self.objects, self.ceph)

    def start_stores(self) -> None:
        """Start Glance and its stores, if they are not up."""
        self.lab.start_image_services()
        self.objects.start()
        if self.ceph:
            self.ceph.start()

    def token(self, user: str) -> str:
        return str(self.lab.session(user).get_token())

    def upload(self, store: str, data: bytes = DATA, **options: Any) -> ids.ImageId:
        """Upload a tenant's private image to one of the stores."""
        if store == "rbd" and self.ceph is None:
            pytest.skip("Ceph is not installed: run tools/install.sh")
        record = {"disk_format": "raw", "container_format": "bare", "visibility": "private"}
        record |= {"name": f"test-{uuid.uuid4()}", **options}
        image_id = self.ask("tenant", "POST", "/v2/images", json=record).json()["id"]
        headers = {"Content-Type": "application/octet-stream", "X-Image-Meta-Store": store}
        path = f"/v2/images/{image_id}/file"
        # In chunks, as glanceclient sends it: of a length that it knows Glance's driver for Swift
        # cannot store the last segment, if that is shorter than the others (glance_store 5.7).
        self.ask("tenant", "PUT", path, data=iter([data]), headers=headers).raise_for_status()
        return ids.parse_image_id(image_id)

    def ask(self, user: str, method: str, path: str, **options: Any) -> requests.Response:
        """Ask Glance."""
        return ask(self.lab, user, method, path, **options)

    def read(
        self,
        image_id: str,
        wanted: str = "bytes=0-99",
        user: str = "acstor",
        at: acstor_gateway.Gateway | None = None,
        token: str | None = None,
    ) -> requests.Response:
        """Ask the gateway for a range, with a token, or else one of a user's."""
        headers = {"X-Auth-Token": token or self.token(user), "Range": wanted}
        url = f"{(at or self.gateway).url}/v1/images/{image_id}/file"
        return requests.get(url, headers=headers, timeout=30)

    def on_the_web(self, web: http_server.LocalServer, user: str = "admin") -> ids.ImageId:
        """Return an image that lies on a web server, as its location says."""
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
        """Do something to the objects of S3, as one who has its keys: ``s3`` is a client."""
        options = {
            "endpoint_url": self.objects.s3_url,
            "aws_access_key_id": swift.S3_USER,
            "aws_secret_access_key": api.PASSWORD,
        }
        script = f"import boto3; s3 = boto3.client('s3', **{options!r}); {words}"
        runs.tool([installed.BIN / "python", "-c", script])


def ask(lab: cloud.Cloud, user: str, method: str, path: str, **options: Any) -> requests.Response:
    """Ask Glance."""
    where = {"endpoint_filter": {"service_type": "image"}, "raise_exc": False}
    session = accounts.kept_session(lab.keystone.auth_url, user)
    return session.request(path, method, **where, **options)


def said(answer: requests.Response, status: int) -> str:
    """Return the words of a refusal with this status; no store's password is in them."""
    assert answer.status_code == status, answer.text
    words: str = answer.json()["error"]["message"]
    assert api.PASSWORD not in words
    return words


@contextlib.contextmanager
def no_image_left(lab: cloud.Cloud, start: Callable[[], None]) -> Iterator[None]:
    """Delete, when the block ends, the images that were made in it.

    Without its store nobody can delete an image, and Glance's lists would fail of it.  One that is
    in use, as Ceph has it for a while after a read, is tried again.

    :param start: starts Glance and the stores, if a test has ended them
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
    """Let a cloud have all stores, and a gateway, until the block is over."""
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
    """Let Glance put what is uploaded into S3 until the block ends; yield the gateway.

    Nothing is converted or copied for anybody: what reads images goes through Glance or the
    gateway, which have the store's credentials.  Keystone's catalog names the gateway.  Glance is
    restarted, so it must run already.

    :raises errors.Unusable: a server does not start; shows the end of its log
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
