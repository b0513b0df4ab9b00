# SPDX-License-Identifier: Apache-2.0
"""The kernel's measurements of a TCP connection (struct tcp_info)."""

import socket
import struct

import trio

_MIN_RTT_US = struct.Struct("=148xI")  # tcpi_min_rtt
_NO_SAMPLE = 0xFFFF_FFFF


def least_rtt_s(sock: socket.socket | trio.socket.SocketType) -> float:
    """Return the least RTT of the last five minutes (0: unknown), or raise OSError if closed."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_US.size)
    [least_us] = _MIN_RTT_US.unpack(info)
    return 0.0 if least_us == _NO_SAMPLE else least_us / 1e6
