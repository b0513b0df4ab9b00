# SPDX-License-Identifier: Apache-2.0
"""Links over real TCP on the loopback interface."""

import socket

import trio

from acstor_agent.peers import peer_link

SILENCE_S = 5.0


async def test_bytes_are_undelivered_until_the_other_side_has_them():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # accepted ones inherit it
        link = await peer_link.connect(*listener.getsockname(), None, SILENCE_S)
        receiver, _ = listener.accept()
    with receiver:
        sent = link.send_nowait([bytes(1 << 20)])
        assert 0 < link.undelivered_bytes <= sent
        receiver.settimeout(SILENCE_S)
        received = 0
        while received < sent:
            received += len(receiver.recv(1 << 16))
        for _ in range(500):
            await trio.sleep(0.01 if link.undelivered_bytes else 0)
        assert not link.undelivered_bytes
        link.close()
