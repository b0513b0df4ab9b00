# SPDX-License-Identifier: Apache-2.0
"""What the agent tells the service manager (sd_notify(3)): a datagram to the socket it names."""

import contextlib
import os
import socket


def notify_ready() -> None:
    """Tell a service manager that waits for it (Type=notify) that the mirror is served."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, contextlib.suppress(OSError):
        manager.sendto(b"READY=1", address.replace("@", "\0", 1))
