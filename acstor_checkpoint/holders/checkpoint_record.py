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
    """A checkpoint that all its holders have stored.

    :param owner: the host that took it
    :param vault_disk: ID of the disk in vaults
    :param taken_ms: since 1970, by the owner's clock
    :param interval_s: of the server's checkpoints; 0: on request only
    :param number: increases with each checkpoint of the disk
    :param changed_bytes: chunks that differ from the image
    :param sent_bytes: to all holders
    :param full_read_reason: why the whole overlay was read; "": only changes were
    :param manifest_name: BLAKE3 of the sealed manifest, in hex
    :param key: the disk's key, in hex; secret
    :param slow_holder: the other holders waited for it; "": none
    """

    checkpoint_id: str
    instance_id: ids.ImageId
    project: str
    image_id: ids.ImageId
    owner: ids.HostId
    vault_disk: ids.ImageId
    taken_ms: int
    consistency: checkpoint_manifest.Consistency
    interval_s: int
    number: int
    disk_bytes: int
    changed_bytes: int
    read_bytes: int
    sent_bytes: int
    full_read_reason: str
    manifest_name: str
    holders: tuple[VaultHolder, ...]
    key: str
    slow_holder: str = ""


Register = Callable[[CheckpointRecord], Collection[str]]
"""Registers a checkpoint; returns the disk's manifests to retain, in hex.

Raises an error of acstor if registration fails."""
