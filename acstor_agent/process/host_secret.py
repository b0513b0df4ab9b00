# SPDX-License-Identifier: Apache-2.0
"""The host's secret key, from which inode numbers are computed.

It must not change while guests run, or they would lose their disks. So it is stored in the state
folder, and workers get it from the supervisor.
"""

import logging
import pathlib
import secrets

from acstor_agent.core.mount import inodes
from acstor_common import errors
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

NAME = "host.secret"


def load(state_dir: pathlib.Path) -> bytes:
    """Return the secret; create it if needed.

    :raises errors.Unusable: it can be neither read nor created
    """
    path = state_dir / NAME
    try:
        if path.exists():
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
