# SPDX-License-Identifier: Apache-2.0
"""The host's secret key for inode numbers; if it changed, running guests would lose their disks."""

import contextlib
import logging
import pathlib
import secrets

from acstor_agent.core.mount import inodes
from acstor_common import errors
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

NAME = "host.secret"


def load(state_dir: pathlib.Path) -> bytes:
    """Return the secret, created if needed, or raise Unusable."""
    path = state_dir / NAME
    try:
        with contextlib.suppress(FileNotFoundError):
            kept = path.read_bytes()
            if len(kept) == inodes.KEY_BYTES:
                return kept
            LOG.error(
                "%s: %d bytes are not a valid secret; guests lose their files", path, len(kept)
            )
        made = secrets.token_bytes(inodes.KEY_BYTES)
        with atomic_file.atomic_write(path, 0o600) as file:
            file.write(made)
    except OSError as e:
        raise errors.Unusable(str(path), f"cannot be used: {e.strerror}") from e
    return made
