# SPDX-License-Identifier: Apache-2.0
"""Registered checkpoints, and stand-ins for checkpoint daemons and for Nova."""

from typing import Any

import msgspec

from acstor_checkpoint.holders import checkpoint_record
from acstor_common.formats import checkpoint_manifest
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import checkpoint_messages as messages
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from acstor_decision import nova_client
from tests.fakes import enrolled_hosts

NOW_S = 1_800_000_000.0
SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
OTHER_SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13"
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
DISK = "6b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21"
PROJECT = "4b1f4c3b0e5a4d3f8a0c"


def checkpoint_id(number: int) -> str:
    return f"0b9d4a5e-3c1f-4f0e-8d57-{number:012}"


def record() -> checkpoint_record.CheckpointRecord:
    """Return the record of a checkpoint of SERVER on its owner, h1."""
    return checkpoint_record.CheckpointRecord(
        checkpoint_id=checkpoint_id(1),
        instance_id=ids.ImageId(SERVER),
        project=PROJECT,
        image_id=ids.ImageId(IMAGE),
        owner=ids.HostId("h1"),
        vault_disk=ids.ImageId(DISK),
        taken_ms=int(NOW_S * 1000),
        consistency=checkpoint_manifest.Consistency.FILESYSTEM,
        interval_s=600,
        number=1,
        disk_bytes=1 << 30,
        changed_bytes=1 << 20,
        read_bytes=1 << 20,
        sent_bytes=1 << 19,
        full_read_reason="",
        manifest_name="ab" * 32,
        holders=(checkpoint_record.VaultHolder(ids.HostId("h2"), "10.0.0.2:7202"),),
        key="cd" * 32,
    )


def taken(number: int, **changed: Any) -> messages.RegisteredCheckpoint:
    """Return a checkpoint of SERVER as h1 registers it."""
    reported = {
        "checkpoint_id": checkpoint_id(number),
        "host": "h1",
        "instance_id": SERVER,
        "project_id": PROJECT,
        "vault_disk": DISK,
        "image_id": IMAGE,
        "taken_ms": int(NOW_S * 1000) + number,
        "consistency": "crash",
        "number": number,
        "size_bytes": 1 << 30,
        "changed_bytes": 1 << 20,
        "sent_bytes": 1 << 19,
        "interval_s": 600,
        "manifest_name": f"{number:064x}",
        "holders": (
            messages.RegisteredHolder("h2", "10.0.0.2:7205"),
            messages.RegisteredHolder("h3", "[fd00::3]:1"),
        ),
        "key": "cd" * 32,
        "sent_s": NOW_S + number,
    }
    return messages.RegisteredCheckpoint(**{**reported, **changed})


class Nova:
    """Looks up servers; raises ``failure`` if it is set."""

    is_there = True

    def __init__(self) -> None:
        self.servers = {SERVER: nova_client.Server("h1", PROJECT)}
        self.failure: Exception | None = None
        self.groups: list[nova_client.Aggregate] = []
        self.metadata: dict[str, dict[str, dict[str, str]]] = {}
        """Server metadata, by host and server."""

    def get_server(self, instance_id: str, requester: str = "") -> nova_client.Server | None:
        self._fail()
        return self.servers.get(instance_id)

    def list_aggregates(self) -> list[nova_client.Aggregate]:
        self._fail()
        return self.groups

    def metadata_on(self, host: str) -> dict[str, dict[str, str]]:
        self._fail()
        return self.metadata.get(host, {})

    def _fail(self) -> None:
        if self.failure:
            raise self.failure


class Daemons:
    """The checkpoint daemons of all hosts, as the service reaches them over the bus.

    :ivar reply_fields: fields of the reply; None: no reply
    :ivar signer: the host that signs the reply; "": the called host
    :ivar failure: raised instead of a reply
    """

    def __init__(self, hosts: enrolled_hosts.EnrolledHosts) -> None:
        self._hosts = hosts
        self.wanted: list[tuple[str, str, int]] = []
        self.reply_fields: dict[str, Any] | None = {}
        self.signer = ""
        self.purpose = signing.CHECKPOINT_HEARD
        self.failure: Exception | None = None

    def request_checkpoint(
        self, instance_id: str, host: str, request: int
    ) -> decision_messages.Signed | None:
        if self.failure:
            raise self.failure
        self.wanted.append((instance_id, host, request))
        if self.reply_fields is None:
            return None
        reply = messages.CheckpointReply(request=request, host=host)
        changed = msgspec.structs.replace(reply, **self.reply_fields)
        return signed_messages.sign_payload(
            changed, self.purpose, *self._hosts.identity(self.signer or host)
        )
