# SPDX-License-Identifier: Apache-2.0
"""Mutants of the engine, each with a unit test that fails under it.

``tests/chaos/test_transfer_swarm.py`` has the mutants that a swarm of hosts detects; those here
need assertions about a single host.
"""

import inspect
import operator

import pytest

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import peer_state
from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import broadcast_lookup
from acstor_agent.engine.fetch import pending_reads
from acstor_agent.engine.fetch import prefetch_limits
from acstor_agent.engine.fetch import read_through
from acstor_agent.engine.fetch import requests_out
from acstor_agent.engine.fetch import retries
from acstor_agent.engine.fetch import source_preference
from acstor_agent.engine.fetch import source_reads
from acstor_agent.engine.fetch import source_selection
from acstor_agent.engine.fetch import upstream_delays
from acstor_agent.engine.serve import peer_requests
from tests.fakes import one_machine
from tests.unit.agent.engine import test_engine as first
from tests.unit.agent.engine import test_names as names
from tests.unit.agent.engine import test_peer_state as book
from tests.unit.agent.engine import test_upload_scheduler as line
from tests.unit.agent.engine import test_upstream_delays as delays
from tests.unit.agent.engine import test_waiting as waiting

Book, Waiters = peer_state.PeerStates, pending_reads.PendingReads


def all_lost(self, host, connection, now):
    """Treat the loss of one connection as the loss of all."""
    peer = self._peers.get_or_create(host)
    lost = list(peer.pending.values())
    for attempt in lost:
        self._end(peer, attempt, now)
    return lost


MUTANTS = {
    "a refused chunk is not requested under another image": (
        *(transfer.Transfer, "next_name", lambda *_: None),
        names.test_peer_that_refuses_one_image_is_asked_under_the_next_one,
    ),
    "image names stay without readers": (
        *(transfer.Transfer, "remove_waiters", lambda *_: None),
        names.test_image_name_is_dropped_with_its_last_reader,
    ),
    "transfers ignore the key": (
        *(chunk_ref, "_KEY", operator.itemgetter(0)),
        names.test_chunks_with_other_keys_or_lengths_are_separate_transfers,
    ),
    "no broadcast lookup": (
        *(
            broadcast_lookup.BroadcastLookups,
            "start_lookup",
            lambda self, t, w: self._failures.lookup_failed(t, w, 0, "", 0.0),
        ),
        waiting.test_dead_home_does_not_prevent_the_broadcast_lookup,
    ),
    "lookups are never ended": (
        *(broadcast_lookup.BroadcastLookups, "end_lookup", lambda *_: None),
        names.test_guest_does_not_wait_for_the_broadcast_lookup_of_another_image,
    ),
    "new readers do not end a retry delay": (
        *(retries.Retries, "retry_now", lambda *_: None),
        waiting.test_new_guest_does_not_wait_for_the_retry_delay_of_others,
    ),
    "retries are unlimited": (
        *(retries, "PER_S", 10**9),
        waiting.test_retries_are_rate_limited_and_images_take_turns,
    ),
    "full queues drop any prefetch": (
        *(prefetch_limits, "SPECULATIVE", frozenset(prefetch_limits.PREFETCH_PRIORITIES)),
        waiting.test_full_queue_drops_only_readahead_of_the_largest_requester,
    ),
    "slow peers are not backed off": (
        *(Book, "_is_slow", lambda *_: False),
        lambda: book.test_much_slower_peer_is_backed_off(16),
    ),
    "backoff is ignored": (
        *(Book, "try_acquire", lambda *_: True),
        book.test_backoff_doubles_and_one_successful_probe_ends_it,
    ),
    "queueing time counts against the peer": (
        *(requests_out.RequestsOut, "_silent_since_s", lambda self, attempt, never_s: attempt.at_s),
        book.test_queued_requests_are_neither_hedged_nor_blamed_on_the_peer,
    ),
    "requests queued for a peer in backoff stay": (
        *(requests_out.RequestsOut, "take_queued", lambda *_: []),
        book.test_backoff_releases_requests_queued_for_the_peer,
    ),
    "late relays are not replaced": (
        *(read_through.ReadThrough, "relay_late", lambda *_: None),
        waiting.test_keepalives_of_a_slow_home_do_not_delay_a_guest,
    ),
    "priorities are never raised": (
        *(requests_out.RequestsOut, "raise_priority", lambda *_: None),
        waiting.test_joining_request_raises_priority_of_transfer_in_flight,
    ),
    "one lost connection ends all requests of the host": (
        *(requests_out.RequestsOut, "take_lost", all_lost),
        waiting.test_lost_connection_ends_only_its_own_requests,
    ),
    "abandoned source reads go on": (
        *(source_reads.SourceReads, "drop_read", lambda *_: None),
        waiting.test_abandoned_source_read_is_cancelled_when_others_need_its_slot,
    ),
    "prefetches ignore cache write-back": (
        *(pending_reads, "KEPT", 1 << 40),
        waiting.test_background_fetch_pauses_while_cache_writes_lag,
    ),
    "empty batches never complete": (
        *(Waiters, "_complete", lambda *_: None),
        waiting.test_empty_batch_is_complete_at_once,
    ),
    "cancelled reads keep their bytes": (
        *(Waiters, "cancel_reads", lambda *_: None),
        waiting.test_cancelled_batch_holds_no_bytes_until_its_deadline,
    ),
    "dropped prefetches stay queued": (
        *(prefetch_limits.PrefetchLimits, "remove_transfer", lambda *_: None),
        waiting.test_queued_prefetch_is_dropped_with_its_last_requester,
    ),
    "the source is never preferred": (
        *(source_preference.SourcePreference, "choose_source_first", lambda *_: False),
        waiting.test_guests_read_the_source_first_if_peers_are_clearly_slower,
    ),
    "distant homes are always asked": (
        *(upstream_delays.UpstreamDelays, "may_ask", lambda *_: True),
        delays.test_home_reads_a_near_source_rather_than_ask_over_the_wan,
    ),
    "read overlap is always low": (
        *(source_preference.ReadOverlap, "is_low", True),
        waiting.test_readahead_uses_the_source_first_if_hosts_share_few_reads,
    ),
    "read overlap is never low": (
        *(source_preference.ReadOverlap, "is_low", False),
        waiting.test_readahead_uses_the_source_first_if_hosts_share_few_reads,
    ),
    "no response is late": (
        *(peer_state, "MAX_LATE_S", 1e9),
        book.test_late_threshold_follows_the_median_of_its_kind_within_bounds,
    ),
    "suspect hosts are not hedged": (
        *(Book, "is_suspect", lambda *_: False),
        first.test_suspect_host_is_hedged_at_once_and_cleared_by_its_response,
    ),
    "no hedged requests": (
        *(Book, "take_hedge", lambda *_: False),
        first.test_late_request_is_hedged_and_cancelled_when_the_hedge_wins,
    ),
    "initial hedges go to a slow source": (
        *(Book, "_is_source_fast", True),
        book.test_initial_hedges_go_only_to_peers_and_a_fast_source,
    ),
    "prefetches delay guests": (
        *(peer_requests.PeerRequests, "_would_delay_guests", lambda *_: False),
        line.test_prefetch_request_is_refused_if_others_wait_when_its_chunk_arrives,
    ),
    "holders are ignored": (
        *(source_selection, "HOLDERS", 0),
        first.test_holder_is_preferred_to_the_home_unless_it_has_more_in_flight,
    ),
    "no acting homes": (
        *(source_selection, "ACTING_HOMES", 1),
        first.test_chunk_is_requested_from_acting_homes_source_then_other_owners,
    ),
    "no owners after the source": (
        *(source_selection, "LAST_RESORTS", 0),
        first.test_chunk_is_requested_from_acting_homes_source_then_other_owners,
    ),
    "referrals are not followed": (
        *(source_selection, "MOST_REFERRALS", 0),
        first.test_referral_is_followed_once_then_the_referrer_is_asked_again,
    ),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_mutant_is_detected_by_its_test(rule, monkeypatch):
    where, what, instead, test = MUTANTS[rule]
    more = [one_machine.Machine()] if inspect.signature(test).parameters else []
    monkeypatch.setattr(where, what, instead)
    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        test(*more)
