# SPDX-License-Identifier: Apache-2.0
"""Record of a checkpoint for the decision service."""

from collections.abc import Callable
from collections.abc import Collection
from typing import NamedTuple

from acstor_common.formats import checkpoint_manifest
from acstor_common.model import ids


class VaultHolder(NamedTuple):
    """A host that keeps checkpoints, and the ``ip:port`` of its vault."""

    host: ids.HostId
    address: str


class CheckpointRecord(NamedTuple):
    """A checkpoint that all its holders have stored."""

    checkpoint_id: str
    instance_id: ids.ImageId
    project: str
    image_id: ids.ImageId
    owner: ids.HostId  # the host that took it
    vault_disk: ids.ImageId  # ID of the disk in vaults
    taken_ms: int  # since 1970, by the owner's clock
    consistency: checkpoint_manifest.Consistency
    interval_s: int  # of the server's checkpoints; 0: on request only
    number: int  # increases with each checkpoint of the disk
    disk_bytes: int
    changed_bytes: int  # chunks that differ from the image
    read_bytes: int
    sent_bytes: int  # to all holders
    full_read_reason: str  # why the whole overlay was read; "": only changes were
    manifest_name: str  # BLAKE3 of the sealed manifest, in hex
    holders: tuple[VaultHolder, ...]
    key: str  # the disk's key, in hex; secret
    slow_holder: str = ""  # the other holders waited for it; "": none


Register = Callable[[CheckpointRecord], Collection[str]]
"""Registers a checkpoint; returns the disk's manifests to retain, in hex.

Raises an error of acstor if registration fails."""
