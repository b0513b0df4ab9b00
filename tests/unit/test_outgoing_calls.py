# SPDX-License-Identifier: Apache-2.0
"""Clients of services that hang or refuse: an error in time that names the address.

Each row is one client, with a short deadline. For other services and tests see
doc/source/contributor/testing.rst, Outgoing calls.

"""

import os
import pathlib
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
import trio
from osc_lib import exceptions as osc_exceptions
from oslo_config import cfg

from acstor_agent.disks import checkpoint_client
from acstor_checkpoint.capture import nbd_client
from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import libvirt_link
from acstor_checkpoint.holders import vault_client
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.service import bounded_responses
from acstor_common.wire import vault_paths
from acstor_decision import conf as decision_conf
from acstor_decision.switch_loads import base
from acstor_glance.client import decision_client as glance_decision_client
from acstor_glance.client import glance_client
from acstor_nova import decision_client as nova_decision_client
from acstor_nova.snapshots import gateway_client
from acstor_osc import client as osc_client
from tests.fakes import dripping_server
from tests.fakes import fake_glance
from tests.fakes import glance_options
from tests.fakes import http_server
from tests.fakes import silent_server
from tests.lab import identities
from tests.lab import local

ENDS_S = 10.0
GATEWAY_LIMITS = gateway_client.GatewayLimits(timeout_s=(1.0, 1.0))
LIBVIRT_LIMITS = libvirt_link.LibvirtLimits(open_s=1.0)
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


class Rig(NamedTuple):
    """A silent service: by TCP, and by a Unix socket."""

    address: str
    path: pathlib.Path
    folder: pathlib.Path

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def glance_conf(self) -> cfg.ConfigOpts:
        """Return options of the listener and the gateway."""
        return glance_options.conf(
            auth_type="none", endpoint_override=self.url, decision_endpoint=self.url, timeout=1
        )


def nova_asks_for_checkpoints(at: Rig) -> object:
    asking = nova_decision_client.DecisionClient(at.url, "", "token", (1.0, 1.0))
    return asking.newest_checkpoints(IMAGE)


def nova_asks_the_gateway(at: Rig) -> object:
    return gateway_client.GatewayClient(at.url, "", limits=GATEWAY_LIMITS).check_gateway()


def nova_asks_for_a_base(at: Rig) -> object:
    return gateway_client.GatewayClient(at.url, "", limits=GATEWAY_LIMITS).check_base(IMAGE)


def listener_asks_glance(at: Rig) -> object:
    return glance_client.connect(at.glance_conf()).get_image(IMAGE)


def listener_asks_the_decision_service(at: Rig) -> object:
    return glance_decision_client.DecisionClient(at.glance_conf()).get("/v1/hosts", dict, 1000)


def decision_service_asks_prometheus(at: Rig) -> object:
    conf = cfg.ConfigOpts()
    decision_conf.register_opts(conf)
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    conf.set_override("url", at.url, "switch_loads_prometheus")
    return base.load("prometheus", conf).read_levels({})


def command_asks_the_api(at: Rig) -> object:
    asking = osc_client.Client(fake_glance.session(at.url), None, None, timeout_s=1.0)
    return asking.get("/v1/status")


def own_credentials(at: Rig) -> credentials.Credentials:
    identities.give(at.folder, "h1")
    files = identity_files.IdentityFiles(
        ids.HostId("h1"), identity_files.files_in(at.folder / "identity")
    )
    own = credentials.Credentials(files, vault_paths.PROTOCOL, certificates.GRACE_S)
    own.reload_files()
    return own


def checkpoint_daemon_asks_a_vault(at: Rig) -> object:
    host, _, port = at.address.rpartition(":")
    address, own = (host, int(port)), own_credentials(at)
    limits = vault_client.ClientLimits(connect_s=1.0)
    asking = vault_client.VaultClient(ids.HostId("h2"), address, own, limits)
    return asking.list_disks(ids.HostId("h1"))


def agent_asks_a_vault(at: Rig) -> object:
    link = checkpoint_client.HolderConnections(own_credentials(at), 60.0, 1.0)
    return trio.run(link.get, f"https://{at.address}/v1/h1", 1000)


def checkpoint_daemon_reads_a_disk(at: Rig) -> object:
    return nbd_client.ExportedDisk(
        nbd_client.Export(str(at.path), "vda", os.getpid(), 1 << 20), "", 1.0
    )


def checkpoint_daemon_asks_libvirt(at: Rig) -> object:
    uri = f"qemu+unix:///system?socket={at.path}"
    return domain_list.Domains(uri, lambda _: None, limits=LIBVIRT_LIMITS).list_servers()


CALLS: list[tuple[Callable[[Rig], object], type[Exception], str]] = [
    (nova_asks_for_checkpoints, errors.DecisionUnreachable, "{address}"),
    (nova_asks_the_gateway, errors.GatewayUnreachable, "{address}"),
    (nova_asks_for_a_base, errors.GatewayUnreachable, "{address}"),
    (listener_asks_glance, errors.ImageServiceUnreachable, "{address}"),
    (listener_asks_the_decision_service, errors.ImageServiceUnreachable, "{address}"),
    (decision_service_asks_prometheus, base.LoadsUnknown, "{address}"),
    (command_asks_the_api, osc_exceptions.CommandError, "{address}"),
    (agent_asks_a_vault, errors.SourceUnreachable, "{address}"),
    (checkpoint_daemon_asks_a_vault, errors.SourceUnreachable, "h2"),
    (checkpoint_daemon_reads_a_disk, errors.Unusable, "export vda at {path}"),
    (checkpoint_daemon_asks_libvirt, errors.Unusable, "[acstor_checkpoint] libvirt_uri = "),
]


LISTS = (listener_asks_glance, listener_asks_the_decision_service, command_asks_the_api)
BOUNDED = (nova_asks_for_checkpoints, nova_asks_the_gateway, nova_asks_for_a_base, *LISTS)
"""Responses to them have a deadline and a size; ``test_api_answers.py`` has the agent's."""


@pytest.mark.parametrize(("call", "error", "words"), CALLS)
def test_call_to_a_hung_service_times_out(
    tmp_path: pathlib.Path, call: Callable[[Rig], object], error: type[Exception], words: str
) -> None:
    path = tmp_path / "s"
    with silent_server.serve() as server, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        check(Rig(server.address, path, tmp_path), call, error, words)


@pytest.mark.parametrize(("call", "error", "words"), CALLS)
def test_call_to_a_refusing_service_fails(
    tmp_path: pathlib.Path, call: Callable[[Rig], object], error: type[Exception], words: str
) -> None:
    address = f"{local.LOOPBACK}:{local.unused_port()}"
    check(Rig(address, tmp_path / "s", tmp_path), call, error, words)


DRIPS = {
    "status line": dripping_server.drip(),
    "headers": dripping_server.drip(b"HTTP/1.1 200 OK\r\nX-Name: "),
    "body": dripping_server.drip(b"HTTP/1.1 500 No\r\nContent-Length: 9999\r\n\r\n"),
}


@pytest.mark.parametrize("before", DRIPS.values(), ids=DRIPS)
@pytest.mark.parametrize(("call", "error", "words"), [row for row in CALLS if row[0] in BOUNDED])
def test_call_to_a_trickling_service_times_out(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    before: dripping_server.Pieces,
    call: Callable[[Rig], object],
    error: type[Exception],
    words: str,
) -> None:
    """The service is never silent for long."""
    initialize = bounded_responses.Adapter.__init__

    def initialize_short(
        adapter: bounded_responses.Adapter, max_bytes: int, _within_s: float, **more: bool
    ) -> None:
        initialize(adapter, max_bytes, 2.0, **more)

    monkeypatch.setattr(bounded_responses.Adapter, "__init__", initialize_short)
    with dripping_server.serve(before, 0.1) as server:
        check(Rig(server.address, tmp_path / "s", tmp_path), call, error, words)


@pytest.mark.parametrize(("call", "error", "words"), [row for row in CALLS if row[0] in LISTS])
def test_endless_response_is_not_read_to_its_end(
    tmp_path: pathlib.Path, call: Callable[[Rig], object], error: type[Exception], words: str
) -> None:
    with http_server.serve(
        {"v1/status": b"", "v1/hosts": b"", f"v2/images/{IMAGE}": b""}
    ) as server:
        server.always = http_server.endless
        address = server.url.removeprefix("http://").rstrip("/")
        check(
            Rig(address, tmp_path / "s", tmp_path),
            call,
            error,
            "takes more than 16777216 bytes",
        )
        assert server.body_bytes < 2 * bounded_responses.MAX_LIST_BYTES


def check(at: Rig, call: Callable[[Rig], object], error: type[Exception], words: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(error) as caught:
        call(at)
    assert time.monotonic() - began_s < ENDS_S
    assert words.format(**at._asdict()) in str(caught.value)
