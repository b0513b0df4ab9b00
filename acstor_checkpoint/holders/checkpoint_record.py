# SPDX-License-Identifier: Apache-2.0
"""What the decision service is told of a checkpoint that all its holders keep.

Whoever registers it returns only when it is registered.
"""

from collections.abc import Callable
from collections.abc import Collection
from typing import NamedTuple

from acstor_common.formats import checkpoint_manifest
from acstor_common.model import ids


class Holder(NamedTuple):
    """A host that keeps checkpoints for others.

    :param address: of its vault, ``ip:port``
    """

    host: ids.HostId
    address: str


class Record(NamedTuple):
    """A checkpoint.

    :param checkpoint_id: a UUID
    :param owner: the host that took it
    :param vault_disk: what the holders know the disk by
    :param taken_ms: since 1970, by the owner's clock
    :param number: counts the checkpoints of the disk; none is used twice
    :param disk_bytes: length of the disk
    :param changed_bytes: of its chunks that differ from the image
    :param read_bytes: of the disk, for this checkpoint
    :param sent_bytes: to all holders, for this checkpoint
    :param whole_because: why all that the overlay has was read; "" if only what was written was
    :param manifest_name: BLAKE3 of the sealed manifest, in hex
    :param key: the disk's key, in hex; a secret
    :param slow_holder: that the other holders waited for; "" if none
    """

    checkpoint_id: str
    instance_id: ids.ImageId
    project: str
    image_id: ids.ImageId
    owner: ids.HostId
    vault_disk: ids.ImageId
    taken_ms: int
    consistency: checkpoint_manifest.Consistency
    number: int
    disk_bytes: int
    changed_bytes: int
    read_bytes: int
    sent_bytes: int
    whole_because: str
    manifest_name: str
    holders: tuple[Holder, ...]
    key: str
    slow_holder: str = ""


Register = Callable[[Record], Collection[str]]
"""Registers a checkpoint; returns the names of the manifests of this disk that stay, in hex.

Raises an error of acstor's if it is not registered: then it is none."""
