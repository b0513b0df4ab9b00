# SPDX-License-Identifier: Apache-2.0
"""Paths of chunks and manifests in the vaults' HTTP interface; stable."""

from typing import Final

from acstor_common.model import ids

PROTOCOL: Final = "acstor-vault/1"  # ALPN protocol; a new name for each incompatible version


def chunk(owner: ids.HostId, disk: ids.ImageId, name: bytes) -> str:
    """Return the path of a sealed chunk."""
    return f"/v1/{owner}/{disk}/chunks/{name.hex()}"


def manifest(owner: ids.HostId, disk: ids.ImageId, name: bytes) -> str:
    """Return the path of a sealed manifest."""
    return f"/v1/{owner}/{disk}/manifests/{name.hex()}"
