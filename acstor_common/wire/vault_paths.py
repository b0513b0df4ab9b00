# SPDX-License-Identifier: Apache-2.0
"""How a host that reads what vaults keep asks for it; acstor_checkpoint has all that vaults answer.

These strings are what hosts of other versions say, too, and are never changed.
"""

from typing import Final

from acstor_common.model import ids

PROTOCOL: Final = "acstor-vault/1"
"""What both sides agree on inside TLS, by ALPN; another one when they would not be understood."""


def chunk(owner: ids.HostId, disk: ids.ImageId, name: bytes) -> str:
    """Return where a sealed chunk is.

    >>> chunk(ids.HostId("h1"), ids.ImageId("6b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21"), b"\\1\\2")
    '/v1/h1/6b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21/chunks/0102'
    """
    return f"/v1/{owner}/{disk}/chunks/{name.hex()}"


def manifest(owner: ids.HostId, disk: ids.ImageId, name: bytes) -> str:
    """Return where a sealed manifest is."""
    return f"/v1/{owner}/{disk}/manifests/{name.hex()}"
