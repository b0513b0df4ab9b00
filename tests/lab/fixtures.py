# SPDX-License-Identifier: Apache-2.0
"""Fixtures of functional and security tests: agents, and one OpenStack's services.

A test run has one OpenStack.  A session fixture imported by a second conftest would run twice, so
these are a plug-in named by the top conftest.
"""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import hosts
from tests.fakes import http_server
from tests.lab import agents
from tests.lab import forked_commands
from tests.lab import local
from tests.lab import runs
from tests.lab.openstack import cloud
from tests.lab.openstack import image_stores
from tests.lab.openstack import installed
from tests.lab.openstack import rabbitmq as rabbitmq_lab


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Run commands on this machine as forks."""
    with forked_commands.enabled():
        yield


@pytest.fixture
def images(tmp_path: pathlib.Path) -> local.ImageFolder:
    return local.ImageFolder(tmp_path / "images")


@pytest.fixture
def start(
    tmp_path: pathlib.Path, images: local.ImageFolder
) -> Iterator[Callable[..., agents.Agent]]:
    """Return a function that starts an agent for the test and waits until it serves."""
    with contextlib.ExitStack() as stack:

        def begin(name: str = "h1", **options: Any) -> agents.Agent:
            agent = hosts.running(tmp_path / name, images, name=name, **options)
            return stack.enter_context(agent)

        yield begin


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: a killed process loses no write."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _descriptor: None)


@pytest.fixture(scope="session")
def openstack_lab() -> Iterator[cloud.Cloud]:
    """The OpenStack of this test run; its services start on demand."""
    if os.geteuid():
        pytest.skip("needs root")
    with runs.Run() as run:
        lab = cloud.Cloud(run.folder / "openstack")
        try:
            yield lab
        finally:
            lab.stop()


@pytest.fixture
def rabbitmq(openstack_lab: cloud.Cloud) -> rabbitmq_lab.RabbitMQ:
    """A running broker, without other services of OpenStack."""
    if shutil.which("rabbitmq-server", path="/usr/sbin") is None:
        pytest.skip("RabbitMQ is not installed: run tools/install.sh")
    openstack_lab.rabbitmq.start()
    openstack_lab.rabbitmq.wait_ready()
    return openstack_lab.rabbitmq


@pytest.fixture(scope="module")
def all_stores(openstack_lab: cloud.Cloud) -> Iterator[image_stores.Place]:
    """A cloud whose Glance has a store of each kind, and a gateway, for the module."""
    if not installed.is_ready():
        pytest.skip(f"the services of OpenStack are not installed: {installed.REMEDY}")
    with image_stores.running(openstack_lab) as place:
        yield place


@pytest.fixture
def place(all_stores: image_stores.Place) -> image_stores.Place:
    """The cloud of ``all_stores``, with all services running."""
    all_stores.start()
    return all_stores


@pytest.fixture
def web() -> Iterator[http_server.LocalServer]:
    """A web server with an image."""
    with http_server.serve({"image": image_stores.DATA}) as server:
        yield server
