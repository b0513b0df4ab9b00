# SPDX-License-Identifier: Apache-2.0
"""Rules that are not kept are found: each mutant by the test that is named beside it.

What the swarm finds stands in ``tests/chaos/test_transfer_swarm.py``; here is what needs a host
that is looked at closely.
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
    """Take the loss of one connection for that of all."""
    peer = self._peers.get_or_create(host)
    lost = list(peer.pending.values())
    for attempt in lost:
        self._end(peer, attempt, now)
    return lost


MUTANTS = {
    "a peer is asked for one image only": (
        *(transfer.Transfer, "next_name", lambda *_: None),
        names.test_peer_that_refuses_one_image_is_asked_for_the_next,
    ),
    "names stay when nobody waits in them": (
        *(transfer.Transfer, "remove_waiters", lambda *_: None),
        names.test_name_goes_with_the_last_who_wanted_it,
    ),
    "one's keys judge another's bytes": (
        *(chunk_ref, "_KEY", operator.itemgetter(0)),
        names.test_one_images_keys_or_length_do_not_judge_what_another_one_wants,
    ),
    "not every host is asked": (
        *(
            broadcast_lookup.BroadcastLookups,
            "start_lookup",
            lambda self, t, w: self._failures.lookup_failed(t, w, 0, "", 0.0),
        ),
        waiting.test_dead_home_does_not_keep_a_guest_from_asking_every_host,
    ),
    "guests wait for another image's search": (
        *(broadcast_lookup.BroadcastLookups, "end_lookup", lambda *_: None),
        names.test_guest_does_not_wait_for_the_search_of_what_another_image_has_not_got,
    ),
    "guests wait for another's pause": (
        *(retries.Retries, "retry_now", lambda *_: None),
        waiting.test_new_guest_does_not_wait_for_the_pause_of_what_was_in_vain,
    ),
    "what is tried again is not bounded": (
        *(retries, "PER_S", 10**9),
        waiting.test_what_is_tried_again_is_bounded_and_each_image_has_its_turn,
    ),
    "lanes forget what was decided": (
        *(prefetch_limits, "SPECULATIVE", frozenset(prefetch_limits.PREFETCH_PRIORITIES)),
        waiting.test_lanes_forget_guesses_alone_and_only_those_of_who_guesses_most,
    ),
    "slow peers are not left alone": (
        *(Book, "_is_slow", lambda *_: False),
        lambda: book.test_peer_that_is_many_times_slower_is_left_alone_however_its_answers_come(16),
    ),
    "a backoff does not hold": (
        *(Book, "try_acquire", lambda *_: True),
        book.test_backoff_doubles_and_one_trial_ends_it,
    ),
    "the line of this host is held against a peer": (
        *(requests_out.RequestsOut, "_silent_since_s", lambda self, attempt, never_s: attempt.at_s),
        book.test_what_waits_in_this_hosts_own_line_is_neither_late_nor_held_against_the_peer,
    ),
    "what waits for who is left alone waits on": (
        *(requests_out.RequestsOut, "take_queued", lambda *_: []),
        book.test_who_is_left_alone_is_not_waited_for_by_what_was_not_sent,
    ),
    "a late home is waited for": (
        *(read_through.ReadThrough, "relay_late", lambda *_: None),
        waiting.test_home_that_only_says_that_it_is_alive_does_not_hold_a_guests_chunk,
    ),
    "nothing becomes more urgent": (
        *(requests_out.RequestsOut, "raise_priority", lambda *_: None),
        waiting.test_who_joins_makes_what_is_under_way_as_urgent_as_he_is,
    ),
    "a loss is of all connections": (
        *(requests_out.RequestsOut, "take_lost", all_lost),
        waiting.test_lost_connection_ends_what_was_asked_on_it_and_nothing_else,
    ),
    "reads that nobody wants go on": (
        *(source_reads.SourceReads, "drop_read", lambda *_: None),
        waiting.test_read_that_nobody_waits_for_gives_way_to_those_that_others_wait_for,
    ),
    "the cache is not waited for": (
        *(pending_reads, "KEPT", 1 << 40),
        waiting.test_nothing_is_fetched_ahead_while_the_cache_is_behind,
    ),
    "batches of nothing are not answered": (
        *(Waiters, "_complete", lambda *_: None),
        waiting.test_empty_batch_is_complete_at_once,
    ),
    "who waits no more is remembered with his bytes": (
        *(Waiters, "cancel_reads", lambda *_: None),
        waiting.test_cancelled_batch_holds_no_bytes_though_its_deadline_is_far,
    ),
    "what was taken back is fetched all the same": (
        *(prefetch_limits.PrefetchLimits, "remove_transfer", lambda *_: None),
        waiting.test_what_waits_for_its_turn_is_taken_back_with_the_last_who_wants_it,
    ),
    "the source never goes first": (
        *(source_preference.SourcePreference, "choose_source_first", lambda *_: False),
        waiting.test_guests_go_to_the_source_first_where_peers_are_clearly_slower,
    ),
    "outer homes are asked however far they are": (
        *(upstream_delays.UpstreamDelays, "may_ask", lambda *_: True),
        delays.test_home_reads_a_near_source_rather_than_ask_over_the_wan,
    ),
    "hosts are never taken to read the same": (
        *(source_preference.ReadOverlap, "is_low", True),
        waiting.test_what_is_read_ahead_follows_guests_to_the_source_where_hosts_hardly_read_the_same,
    ),
    "hosts are always taken to read the same": (
        *(source_preference.ReadOverlap, "is_low", False),
        waiting.test_what_is_read_ahead_follows_guests_to_the_source_where_hosts_hardly_read_the_same,
    ),
    "answers are never late": (
        *(peer_state, "MAX_LATE_S", 1e9),
        book.test_what_is_late_follows_the_median_of_its_kind_within_bounds,
    ),
    "a trial costs a guest": (
        *(Book, "is_suspect", lambda *_: False),
        first.test_host_on_trial_is_raced_at_once_and_shows_how_it_is,
    ),
    "nothing is hedged": (
        *(Book, "take_hedge", lambda *_: False),
        first.test_late_attempt_is_raced_and_the_winner_ends_it,
    ),
    "the first hedges are for the source, however slow it is": (
        *(Book, "_is_source_fast", True),
        book.test_first_races_are_for_peers_and_for_a_source_that_has_shown_that_it_is_quick,
    ),
    "what is fetched ahead is in the way": (
        *(peer_requests.PeerRequests, "_would_delay_guests", lambda *_: False),
        line.test_what_nobody_waits_for_is_refused_when_it_comes_while_others_wait,
    ),
    "holders are not asked": (
        *(source_selection, "HOLDERS", 0),
        first.test_holder_goes_before_the_home_unless_it_has_more_to_answer,
    ),
    "nobody acts for a home": (
        *(source_selection, "ACTING_HOMES", 1),
        first.test_who_acts_for_a_home_is_asked_then_the_source_then_who_may_have_it,
    ),
    "nobody is asked behind the source": (
        *(source_selection, "LAST_RESORTS", 0),
        first.test_who_acts_for_a_home_is_asked_then_the_source_then_who_may_have_it,
    ),
    "referrals are not followed": (
        *(source_selection, "MOST_REFERRALS", 0),
        first.test_referral_is_followed_once_and_ends_at_who_referred,
    ),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_rule_that_is_not_kept_is_found(rule, monkeypatch):
    where, what, instead, test = MUTANTS[rule]
    more = [one_machine.Machine()] if inspect.signature(test).parameters else []
    monkeypatch.setattr(where, what, instead)
    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        test(*more)
