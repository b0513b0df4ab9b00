# SPDX-License-Identifier: Apache-2.0
"""Hosts that misuse a real vault keep no other host from it, and take no more than their quota."""

import contextlib
import pathlib
import ssl
import time
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from acstor_checkpoint import belonging
from acstor_checkpoint import channel
from acstor_checkpoint import names
from acstor_checkpoint import places
from acstor_common import checkpoint_sealing
from acstor_common import ids
from acstor_common import vault_paths
from tests.lab import runs
from tests.lab import vaults

SEAL = checkpoint_sealing.Seal(bytes(range(32)))
DISK = ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
CROWD = [f"c{n}" for n in range(places.CONNECTIONS // vault_paths.CONNECTIONS_OF_HOST)]
UPLOAD_S = 5.0
"""For one chunk over a new connection, on a busy machine; alone it takes 0.03 s."""
PUT = "PUT /v1/{host}/{disk}/chunks HTTP/1.1\r\nhost: v\r\ncontent-length: 1000000\r\n\r\n"

Start = Callable[..., vaults.Vault]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    """Return what starts the vault of h2; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(**options: object) -> vaults.Vault:
            vault = vaults.Vault(tmp_path / "h2", "h2", **options)
            vault.others = tuple(CROWD)
            stack.callback(vault.close)
            vault.start()
            return vault

        yield begin


@pytest.fixture
def h1(tmp_path: pathlib.Path) -> vaults.Vault:
    return vaults.Vault(tmp_path / "h1", "h1")


def chunk(number: int) -> names.Sealed:
    plain = number.to_bytes(8, "big") * 8192
    name = SEAL.name(plain)
    return names.Sealed(name, SEAL.close(name, plain))


@pytest.mark.parametrize("is_busy", [False, True])
def test_hosts_that_hold_all_connections_keep_no_other_host_out(
    start: Start, h1: vaults.Vault, tmp_path: pathlib.Path, is_busy: bool
) -> None:
    """32 hosts hold 8 connections each: idle ones, or ones with a request that never ends."""
    h2 = start()
    with contextlib.ExitStack() as stack:
        for name in CROWD:
            host = vaults.Vault(tmp_path / name, name)
            for _ in range(vault_paths.CONNECTIONS_OF_HOST):
                tls = stack.enter_context(host.dial(h2))
                if is_busy:
                    tls.sendall(PUT.format(host=name, disk=DISK).encode())
        for number in range(3):
            began_s = time.monotonic()
            with h1.client(h2) as client:
                client.put(names.Disk(h1.name, DISK), [chunk(number)])
            assert time.monotonic() - began_s < UPLOAD_S
    assert "Traceback" not in h2.log()


def begin_put(tls: ssl.SSLSocket) -> None:
    tls.sendall(PUT.format(host="h1", disk=DISK).encode() + names.HEAD.pack(bytes(32), 65536))


def drips(tls: ssl.SSLSocket, within_s: float) -> float:
    """Put a chunk byte by byte until the vault ends the connection; return how long it took."""
    began_s = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - began_s < within_s:
            tls.sendall(b"x")
            time.sleep(0.2)
    return time.monotonic() - began_s


def kept_in(vault: vaults.Vault) -> list[pathlib.Path]:
    return [path for path in vault.folder.glob("*/**/*") if path.is_file()]


def test_host_that_is_revoked_in_the_middle_of_a_put_is_cut_off(
    start: Start, h1: vaults.Vault
) -> None:
    h2, within_s = start(), belonging.LOOK_EVERY_S + 5.0
    assert within_s < channel.allowed_s(1_000_000)
    with h1.dial(h2) as tls:
        begin_put(tls)
        time.sleep(0.5)
        h2.write_table("h2")
        assert drips(tls, within_s + 5.0) < within_s
    runs.wait_for(lambda: not kept_in(h2), 5, "the end of the batch", h2.log)
    assert "Traceback" not in h2.log()


def test_put_that_drips_ends_in_its_time(start: Start, h1: vaults.Vault) -> None:
    h2 = start()
    within_s = channel.allowed_s(1_000_000) + 3.0
    with h1.dial(h2) as tls:
        begin_put(tls)
        assert drips(tls, within_s + 5.0) < within_s
    with h1.client(h2) as client:
        client.put(names.Disk(h1.name, DISK), [chunk(1)])
    assert "Traceback" not in h2.log()
