# SPDX-License-Identifier: Apache-2.0
"""Paths of chunks and manifests in the vaults' HTTP interface; stable."""

from typing import Final

from acstor_common.model import ids

PROTOCOL: Final = "acstor-vault/1"
"""ALPN protocol; a new name for each incompatible version."""


def chunk(owner: ids.HostId, disk: ids.ImageId, name: bytes) -> str:
    """Return the path of a sealed chunk.

    >>> chunk(ids.HostId("h1"), ids.ImageId("6b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21"), b"\\1\\2")
    '/v1/h1/6b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21/chunks/0102'
    """
    return f"/v1/{owner}/{disk}/chunks/{name.hex()}"


def manifest(owner: ids.HostId, disk: ids.ImageId, name: bytes) -> str:
    """Return the path of a sealed manifest."""
    return f"/v1/{owner}/{disk}/manifests/{name.hex()}"
