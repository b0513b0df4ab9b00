# SPDX-License-Identifier: Apache-2.0
"""Hosts that register endlessly do not block honest hosts; Nova responds over HTTP."""

import json
import pathlib
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest

from acstor_common.model import ids
from acstor_decision import conf as decision_conf
from acstor_decision import nova_client
from tests.fakes import http_server

HOSTILE, HONEST, AT_A_TIME = 32, 200, 4
NOVA_S = 0.2
"""Response time of Nova."""
SERVER = ids.ImageId("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")


@pytest.fixture
def asked(tmp_path: pathlib.Path) -> Iterator[nova_client.NovaClient]:
    reported = {"server": {"OS-EXT-SRV-ATTR:host": "h1", "tenant_id": "p"}}

    def slow(handler: Any, wanted: http_server.ClientRequest) -> None:
        time.sleep(NOVA_S)
        http_server.fine(handler, wanted)

    (tmp_path / "empty.conf").write_text("")
    with http_server.serve({f"servers/{SERVER}": json.dumps(reported).encode()}) as web:
        web.always = slow
        conf = decision_conf.load(["--config-file", str(tmp_path / "empty.conf")])
        for name, value in {"auth_type": "none", "endpoint_override": web.url}.items():
            conf.set_override(name, value, "nova")
        yield nova_client.NovaClient(conf)


def test_endless_registrations_of_some_hosts_leave_slots_for_others(
    asked: nova_client.NovaClient,
) -> None:
    stopping, refused = threading.Event(), [0]

    def flood(name: str) -> None:
        while not stopping.is_set():
            try:
                asked.get_server(SERVER, name)
            except nova_client.NovaBusy:
                refused[0] += 1
                time.sleep(0.01)

    def register(number: int) -> float:
        began_s = time.monotonic()
        found = asked.get_server(SERVER, f"honest {number}")
        assert found is not None and found.host == "h1"
        return time.monotonic() - began_s

    with futures.ThreadPoolExecutor(HOSTILE + AT_A_TIME) as pool:
        for number in range(HOSTILE):
            pool.submit(flood, f"hostile {number}")
        try:
            time.sleep(2 * nova_client.WAIT_S)
            with futures.ThreadPoolExecutor(AT_A_TIME) as honest:
                took_s = list(honest.map(register, range(HONEST)))
        finally:
            stopping.set()
    assert max(took_s) < nova_client.WAIT_S
    print(f"{HONEST} of {HONEST} accepted, {max(took_s):.2f} s at worst, {refused[0]} refused")
