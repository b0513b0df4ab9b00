# SPDX-License-Identifier: Apache-2.0
"""A secret of this host, by which the numbers are made that the kernel knows images by.

The one rule: it stays the same as long as guests run, or they would lose their disks.
So it lies in the state folder, for the next supervisor, and the supervisor that has read it
gives it to all its workers, whatever becomes of the file meanwhile.
"""

import logging
import pathlib
import secrets

from acstor_agent.core.mount import inodes
from acstor_common import errors
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

NAME = "host.secret"


def of(state_dir: pathlib.Path) -> bytes:
    """Return the secret; it is made now if there is none.

    :raises errors.Unusable: it can be neither read nor made
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
