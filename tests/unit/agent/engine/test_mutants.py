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
    "a peer is asked for one image only": (
        *(transfer.Transfer, "next_name", lambda *_: None),
        names.test_peer_that_refuses_one_image_is_asked_under_the_next_one,
    ),
    "names stay when nobody waits in them": (
        *(transfer.Transfer, "remove_waiters", lambda *_: None),
        names.test_image_name_is_dropped_with_its_last_reader,
    ),
    "one's keys judge another's bytes": (
        *(chunk_ref, "_KEY", operator.itemgetter(0)),
        names.test_chunks_with_other_keys_or_lengths_are_separate_transfers,
    ),
    "not every host is asked": (
        *(
            broadcast_lookup.BroadcastLookups,
            "start_lookup",
            lambda self, t, w: self._failures.lookup_failed(t, w, 0, "", 0.0),
        ),
        waiting.test_dead_home_does_not_prevent_the_broadcast_lookup,
    ),
    "guests wait for another image's search": (
        *(broadcast_lookup.BroadcastLookups, "end_lookup", lambda *_: None),
        names.test_guest_does_not_wait_for_the_broadcast_lookup_of_another_image,
    ),
    "guests wait for another's pause": (
        *(retries.Retries, "retry_now", lambda *_: None),
        waiting.test_new_guest_does_not_wait_for_the_retry_delay_of_others,
    ),
    "what is tried again is not bounded": (
        *(retries, "PER_S", 10**9),
        waiting.test_retries_are_rate_limited_and_images_take_turns,
    ),
    "lanes forget what was decided": (
        *(prefetch_limits, "SPECULATIVE", frozenset(prefetch_limits.PREFETCH_PRIORITIES)),
        waiting.test_full_queue_drops_only_readahead_of_the_largest_requester,
    ),
    "slow peers are not left alone": (
        *(Book, "_is_slow", lambda *_: False),
        lambda: book.test_much_slower_peer_is_backed_off(16),
    ),
    "a backoff does not hold": (
        *(Book, "try_acquire", lambda *_: True),
        book.test_backoff_doubles_and_one_successful_probe_ends_it,
    ),
    "the line of this host is held against a peer": (
        *(requests_out.RequestsOut, "_silent_since_s", lambda self, attempt, never_s: attempt.at_s),
        book.test_queued_requests_are_neither_hedged_nor_blamed_on_the_peer,
    ),
    "what waits for who is left alone waits on": (
        *(requests_out.RequestsOut, "take_queued", lambda *_: []),
        book.test_backoff_releases_requests_queued_for_the_peer,
    ),
    "a late home is waited for": (
        *(read_through.ReadThrough, "relay_late", lambda *_: None),
        waiting.test_keepalives_of_a_slow_home_do_not_delay_a_guest,
    ),
    "nothing becomes more urgent": (
        *(requests_out.RequestsOut, "raise_priority", lambda *_: None),
        waiting.test_joining_request_raises_priority_of_transfer_in_flight,
    ),
    "a loss is of all connections": (
        *(requests_out.RequestsOut, "take_lost", all_lost),
        waiting.test_lost_connection_ends_only_its_own_requests,
    ),
    "reads that nobody wants go on": (
        *(source_reads.SourceReads, "drop_read", lambda *_: None),
        waiting.test_abandoned_source_read_is_cancelled_when_others_need_its_slot,
    ),
    "the cache is not waited for": (
        *(pending_reads, "KEPT", 1 << 40),
        waiting.test_background_fetch_pauses_while_cache_writes_lag,
    ),
    "batches of nothing are not answered": (
        *(Waiters, "_complete", lambda *_: None),
        waiting.test_empty_batch_is_complete_at_once,
    ),
    "who waits no more is remembered with his bytes": (
        *(Waiters, "cancel_reads", lambda *_: None),
        waiting.test_cancelled_batch_holds_no_bytes_until_its_deadline,
    ),
    "what was taken back is fetched all the same": (
        *(prefetch_limits.PrefetchLimits, "remove_transfer", lambda *_: None),
        waiting.test_queued_prefetch_is_dropped_with_its_last_requester,
    ),
    "the source never goes first": (
        *(source_preference.SourcePreference, "choose_source_first", lambda *_: False),
        waiting.test_guests_read_the_source_first_if_peers_are_clearly_slower,
    ),
    "outer homes are asked however far they are": (
        *(upstream_delays.UpstreamDelays, "may_ask", lambda *_: True),
        delays.test_home_reads_a_near_source_rather_than_ask_over_the_wan,
    ),
    "hosts are never taken to read the same": (
        *(source_preference.ReadOverlap, "is_low", True),
        waiting.test_readahead_uses_the_source_first_if_hosts_share_few_reads,
    ),
    "hosts are always taken to read the same": (
        *(source_preference.ReadOverlap, "is_low", False),
        waiting.test_readahead_uses_the_source_first_if_hosts_share_few_reads,
    ),
    "answers are never late": (
        *(peer_state, "MAX_LATE_S", 1e9),
        book.test_late_threshold_follows_the_median_of_its_kind_within_bounds,
    ),
    "a trial costs a guest": (
        *(Book, "is_suspect", lambda *_: False),
        first.test_suspect_host_is_hedged_at_once_and_cleared_by_its_response,
    ),
    "nothing is hedged": (
        *(Book, "take_hedge", lambda *_: False),
        first.test_late_request_is_hedged_and_cancelled_when_the_hedge_wins,
    ),
    "the first hedges are for the source, however slow it is": (
        *(Book, "_is_source_fast", True),
        book.test_initial_hedges_go_only_to_peers_and_a_fast_source,
    ),
    "what is fetched ahead is in the way": (
        *(peer_requests.PeerRequests, "_would_delay_guests", lambda *_: False),
        line.test_prefetch_request_is_refused_if_others_wait_when_its_chunk_arrives,
    ),
    "holders are not asked": (
        *(source_selection, "HOLDERS", 0),
        first.test_holder_is_preferred_to_the_home_unless_it_has_more_in_flight,
    ),
    "nobody acts for a home": (
        *(source_selection, "ACTING_HOMES", 1),
        first.test_chunk_is_requested_from_acting_homes_source_then_other_owners,
    ),
    "nobody is asked behind the source": (
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
