# SPDX-License-Identifier: Apache-2.0
"""Asks one peer for one chunk, over the network, for ``Exchange``."""

from collections.abc import Callable

from acstor_agent.chunks import exchange
from acstor_agent.chunks import want as want_
from acstor_agent.core.exchange import errand
from acstor_agent.peers import peer_net
from acstor_common import ids
from acstor_common import peer_wire


class Asking:
    """Questions to peers as their connections carry them.

    :param timeout_s: for one question, connecting included
    :param may_refer: peers may name others to ask instead
    :param received: is told of each peer that gave bytes, and of how many
    """

    def __init__(
        self,
        net: peer_net.PeerNet,
        *,
        timeout_s: float,
        may_refer: bool,
        received: Callable[[ids.HostId, int], None],
    ) -> None:
        self._net, self._timeout_s = net, timeout_s
        self._may_refer, self._received = may_refer, received

    async def ask(self, ask: exchange.Ask, want: want_.Want) -> want_.Bytes | peer_wire.Refer:
        """Return what a peer answers; the bytes are not checked.

        :raises errors.ChunkUnavailable: it has not got the chunk, or does not answer
        :raises errors.RemoteProtocolError: it does not keep to the protocol
        """
        answer = await self._net.fetch(
            ask.host,
            ask.address,
            ask.errand.klass,
            image_id=want.image_id,
            offset=want.offset,
            length=want.length,
            cid=want.cid,
            may_read_source=ask.may_read_source,
            timeout_s=self._timeout_s,
            may_refer=ask.may_refer and self._may_refer,
            is_soon=ask.errand is errand.Errand.READ_AHEAD,
            is_relayed=ask.is_relayed,
            is_moved=ask.is_moved,
        )
        if not isinstance(answer, peer_wire.Refer):
            self._received(ask.host, len(answer))
        return answer
