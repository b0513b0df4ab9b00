# SPDX-License-Identifier: Apache-2.0
"""The transfers of a host, and how they split."""

from collections.abc import Sequence

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import prefetch_limits
from acstor_agent.engine.fetch import requests_out
from acstor_agent.engine.fetch import source_reads

Attempt = transfer.Attempt
Refs = transfer.Refs
Transfer = transfer.Transfer


class Transfers(dict[chunk_ref.Key, Transfer]):
    """The transfers under way, by the key of each chunk."""

    def __init__(
        self,
        out: requests_out.RequestsOut,
        reads: source_reads.SourceReads,
        limits: prefetch_limits.PrefetchLimits,
    ) -> None:
        super().__init__()
        self.unwanted: dict[Transfer, None] = {}  # without readers, but still read
        self._out, self._reads, self._limits = out, reads, limits
        out.split, reads.divide = self.split_attempt, self.split_read

    def get_or_create(self, refs: Refs, priority: priority.Priority) -> Transfer:
        """Return the transfer of exactly these chunks, which are in one transfer now or in none."""
        keys = chunk_ref.keys_of(refs)
        transfer = self.get(keys[0])
        if transfer is None:
            transfer = Transfer(refs, keys, priority)
            self.update(dict.fromkeys(keys, transfer))
            return transfer
        if transfer.chunk_count > len(keys):
            transfer = self.split(transfer, [transfer.keys.index(key) for key in keys])
        if transfer.refs[0] is not refs[0]:
            by_key = dict(zip(keys, refs, strict=True))
            transfer.add_reference(tuple([by_key[key] for key in transfer.keys]))
        if self.unwanted:
            self.unwanted.pop(transfer, None)
        return transfer

    def single_transfer(self, key: chunk_ref.Key) -> Transfer | None:
        """Return the transfer of one chunk alone, if the chunk is under way."""
        transfer = self.get(key)
        if transfer is not None and transfer.chunk_count > 1:
            transfer = self.split(transfer, [transfer.keys.index(key)])
        return transfer

    def split_transfer(self, transfer: Transfer) -> list[Transfer]:
        """Split a transfer into single chunks; the last one keeps the transfer."""
        return [*(self.split(transfer, [0]) for _ in range(transfer.chunk_count - 1)), transfer]

    def split(self, transfer: Transfer, some: Sequence[int]) -> Transfer:
        """Split some chunks, by index, off a transfer."""
        assert not (
            transfer.retry or transfer.lookup or transfer.peer_requests or transfer.charged_to
        )
        part = transfer.split(some)
        self.update(dict.fromkeys(part.keys, part))
        for attempt, half in zip(transfer.attempts, part.attempts, strict=True):
            self._out.divide_attempt(attempt, half)
        if transfer.relay is not None and part.relay is not None:
            self._out.divide_attempt(transfer.relay, part.relay)
        if transfer.read is not None:
            part.read = self._reads.split(transfer.read, some)
        self._limits.divide_transfer(transfer, part)
        if transfer in self.unwanted:
            self.unwanted[part] = None
        return part

    def split_attempt(self, attempt: Attempt, some: list[int]) -> Attempt:
        """Split some chunks, by index, off an attempt and its transfer."""
        transfer = attempt.transfer
        if attempt is transfer.relay:
            relay = self.split(transfer, some).relay
            assert relay is not None
            return relay
        if attempt in transfer.attempts:
            at = transfer.attempts.index(attempt)
            return self.split(transfer, some).attempts[at]
        part = requests_out.split_ended(attempt, some)
        self._out.divide_attempt(attempt, part)
        return part

    def split_read(self, read: source_reads.SourceRead, some: list[int]) -> source_reads.SourceRead:
        """Split some chunks, by index, off a source read and its transfer."""
        transfer = self.get(read.first_ref.key)
        if transfer is None or transfer.read is not read:
            return self._reads.split(read, some)
        found: source_reads.SourceRead = self.split(transfer, some).read
        return found

    def drop_if_done(self, transfer: Transfer) -> None:
        """Forget a transfer without readers and without anything under way."""
        if transfer.is_wanted:
            return
        if transfer.is_idle:
            self.forget_transfer(transfer)
        elif transfer.read is not None:
            self.unwanted[transfer] = None

    def forget_transfer(self, transfer: Transfer) -> None:
        """Forget a transfer."""
        if self.get(transfer.key) is transfer:
            for key in transfer.keys:
                del self[key]
            if self.unwanted:
                self.unwanted.pop(transfer, None)
            self.uncharge(transfer)

    def uncharge(self, transfer: Transfer) -> None:
        """Stop charging a transfer to a peer."""
        if transfer.charged_to is not None:
            transfer.charged_to.begun -= 1
            transfer.charged_to = None
