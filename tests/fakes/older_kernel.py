# SPDX-License-Identifier: Apache-2.0
"""Runs a script of this project as on a kernel that offers no FUSE_NOTIFY_RESEND.

    python tests/fakes/older_kernel.py SCRIPT [ARGUMENT...]

The agent goes by what the kernel offers, and this one's offer cannot be changed on its way.
"""

import runpy
import sys

from acstor_agent.core.mount import fuse_init


def main() -> None:
    """Run the script."""
    del sys.path[0]  # this folder: its modules are not to be found by their bare names
    fuse_init.can_resend = lambda request: False
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
