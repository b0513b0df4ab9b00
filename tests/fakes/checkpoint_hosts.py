# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as hosts tell of them, their daemons, and a Nova that says where servers are."""

from typing import Any

import msgspec

from acstor_common import checkpoint_messages as messages
from acstor_common import decision_api
from acstor_common import sealed
from acstor_common import signing
from acstor_decision import nova
from tests.fakes import enrolled_hosts

NOW_S = 1_800_000_000.0
SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
OTHER_SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13"
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
PROJECT = "4b1f4c3b0e5a4d3f8a0c"


def checkpoint_id(number: int) -> str:
    return f"0b9d4a5e-3c1f-4f0e-8d57-{number:012}"


def taken(number: int, **changed: Any) -> messages.Taken:
    """Return what host h1 tells of a checkpoint of SERVER."""
    told = {
        "checkpoint_id": checkpoint_id(number),
        "host": "h1",
        "instance_id": SERVER,
        "project_id": PROJECT,
        "vault_disk": "6b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21",
        "image_id": IMAGE,
        "taken_ms": int(NOW_S * 1000) + number,
        "consistency": "crash",
        "number": number,
        "size_bytes": 1 << 30,
        "changed_bytes": 1 << 20,
        "sent_bytes": 1 << 19,
        "interval_s": 600,
        "manifest_name": f"{number:064x}",
        "holders": (messages.Holder("h2", "10.0.0.2:7205"), messages.Holder("h3", "[fd00::3]:1")),
        "key": "cd" * 32,
        "sent_s": NOW_S + number,
    }
    return messages.Taken(**{**told, **changed})


class Nova:
    """Says where servers are; ``failure`` is raised instead."""

    is_there = True

    def __init__(self) -> None:
        self.servers = {SERVER: nova.Server("h1", PROJECT)}
        self.failure: Exception | None = None
        self.asked: list[tuple[str, bool]] = []

    def server(self, instance_id: str, *, now: bool = False) -> nova.Server | None:
        self.asked.append((instance_id, now))
        if self.failure:
            raise self.failure
        return self.servers.get(instance_id)


class Daemons:
    """The checkpoint daemons of all hosts, as the service reaches them over the bus.

    ``heard`` is what they answer, None that nobody does; ``signer`` is who signs it if that is not
    the one who was asked, and ``failure`` is raised instead.
    """

    def __init__(self, hosts: enrolled_hosts.EnrolledHosts) -> None:
        self._hosts = hosts
        self.wanted: list[tuple[str, str, int]] = []
        self.heard: dict[str, Any] | None = {}
        self.signer = ""
        self.purpose = signing.CHECKPOINT_HEARD
        self.failure: Exception | None = None

    def want_checkpoint(
        self, instance_id: str, host: str, request: int
    ) -> decision_api.Signed | None:
        if self.failure:
            raise self.failure
        self.wanted.append((instance_id, host, request))
        if self.heard is None:
            return None
        heard = messages.Heard(request=request, host=host)
        changed = msgspec.structs.replace(heard, **self.heard)
        return sealed.seal(changed, self.purpose, *self._hosts.identity(self.signer or host))
