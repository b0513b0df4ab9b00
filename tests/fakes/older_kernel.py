# SPDX-License-Identifier: Apache-2.0
"""Runs a script of this project as on a kernel without FUSE_NOTIFY_RESEND.

    python tests/fakes/older_kernel.py SCRIPT [ARGUMENT...]

It overrides the agent's check, since a kernel's FUSE features cannot be changed.
"""

import runpy
import sys

from acstor_agent.core.mount import fuse_init


def main() -> None:
    """Run the script."""
    del sys.path[0]  # this folder must not be on the module path
    fuse_init.can_resend = lambda request: False
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
