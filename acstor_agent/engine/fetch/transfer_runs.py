# SPDX-License-Identifier: Apache-2.0
"""Runs: which chunks of a batch one transfer can hold."""

from collections.abc import Sequence

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import context

Refs = transfer.Refs
Transfer = transfer.Transfer


def joinable_chunks(
    context: context.Context, batch: Sequence[chunk_ref.ChunkRef], index: int
) -> Refs:
    """Return the chunks from ``index`` on for one transfer: same image, owners and holders."""
    limit = min(index + context.settings.run_chunks, len(batch))
    first = batch[index]
    if limit - index <= 1:
        return (first,)
    transfers, kept, owners = context.transfers, context.kept, context.ring.all_owners
    refs = tuple(batch[index:limit])
    keys = chunk_ref.keys_of(refs)
    known = [*map(transfers.get, keys)]
    transfer, segment, image_id = known[0], first.segment, first.image_id
    owned_by, held_by = owners(first.ring_position), context.locations.all_keys(refs)
    seen = {keys[0]}
    for at in range(1, len(refs)):
        ref, key = refs[at], keys[at]
        is_new = key not in seen and key not in kept
        if not is_new or ref.image_id != image_id or known[at] is not transfer:
            return refs[:at]
        is_alike = (segment and ref.segment == segment) or owners(ref.ring_position) == owned_by
        if transfer is None and not (is_alike and held_by[at] == held_by[0]):
            return refs[:at]
        seen.add(key)
    return refs


def positions(transfer: Transfer, refs: Refs, index: int) -> tuple[int, ...]:
    """Return a transfer's positions in a batch that has ``refs`` from ``index`` on."""
    positions = range(index, index + len(refs))
    if transfer.refs is refs or len(refs) == 1:
        return tuple(positions)
    by_key = dict(zip([ref.key for ref in refs], positions, strict=True))
    return tuple([by_key[key] for key in transfer.keys])
