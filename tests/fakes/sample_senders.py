# SPDX-License-Identifier: Apache-2.0
"""Hosts that send any samples over a real broker to a real decision service."""

import contextlib
import pathlib
import sqlite3
import time
from typing import Any

import oslo_messaging
from oslo_config import cfg

from acstor_common.identity import signing
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages
from tests.fakes import decision_databases
from tests.lab import decision

WAIT_S = 30.0


class Sender:
    """A host's identity, which signs samples."""

    def __init__(self, instance: decision.Instance, folder: pathlib.Path, name: str) -> None:
        decision.manage(instance.config_file, "authority", "issue", name, "--out", str(folder))
        self.name, self.number, self.started_s = name, 0, time.time() - 1.0
        self._identity = [(folder / file).read_bytes() for file in ("key.pem", "cert.pem")]

    def next(self, **fields: Any) -> dict[str, Any]:
        """Return the next sample, encoded."""
        self.number += 1
        address = f"127.0.0.{self.name[1:]}:7201"
        own = {
            "address": address,
            "number": self.number,
            "started_s": self.started_s,
            "interval_s": decision.COLLECTION_S,
        }
        sample = decision_databases.sample(self.name, time.time(), **own | fields)
        return decision_messages.encode(
            signed_messages.sign_payload(sample, signing.SAMPLE, *self._identity)
        )


class Bus:
    """A client of the broker with its password."""

    def __init__(self, folder: pathlib.Path, url: str) -> None:
        path = folder / "publisher.conf"
        path.write_text(f"[DEFAULT]\ntransport_url = {url}\n")
        cfg.CONF(["--config-file", str(path)], project="acstor")
        self._transport = message_bus.open_transport(cfg.CONF)
        target = oslo_messaging.Target(
            topic=decision_messages.TOPIC,
            exchange=decision_messages.EXCHANGE,
            version=decision_messages.VERSION,
        )
        client = oslo_messaging.get_rpc_client(self._transport, target, retry=3, timeout=WAIT_S)
        self._client = client

    def send(self, payload: dict[str, Any]) -> None:
        to_all = self._client.prepare(fanout=True)
        to_all.cast({}, decision_messages.SAMPLE_COLLECTED, payload=payload)

    def close(self) -> None:
        self._transport.cleanup()
        cfg.CONF.reset()


def list_tables(database: pathlib.Path) -> list[dict[str, str]]:
    """Return the address of each host of all published tables in an SQLite file, oldest first."""
    with contextlib.closing(sqlite3.connect(database)) as link:
        tables = link.execute("SELECT ring_table FROM rings ORDER BY epoch").fetchall()
    found = [hash_ring.decode(table.encode(), "") for (table,) in tables]
    return [{host.host: host.address for host in table.hosts} for table in found]
