# SPDX-License-Identifier: Apache-2.0
"""Decides how each chunk reaches this host and which chunks this host serves.

The engine is sans-IO, as h11 is: events go in and batches of actions come out. It has no clock and
no randomness of its own, and never inspects the bytes of chunks. The agent, the swarm test and the
simulator run it. doc/source/contributor/exchange.rst lists its rules.

A read of a cold chunk: ``fetch.pending_reads`` creates a ``transfer``; ``fetch.source_selection``
orders the providers; ``fetch.requests_out`` sends an attempt; ``fetch.responses`` takes the answer.
On the peer, ``serve.authorization`` checks the proof, ``serve.peer_requests`` answers from the
cache or waits for a transfer, and ``upload_scheduler`` orders the answers.

Each event is a method of ``engine.Engine``. It takes the time first, in seconds of a monotonic
clock, and returns actions, which the caller carries out in order before it feeds the next event. An
action may start a task whose result is another event. Feed ``run_due_timers`` at ``next_s``. Events
ignore unknown numbers, indexes, tokens and connections, and do not raise. If one raises all the
same, call ``recover_from_fault(now, why)``.

* ``request_chunks``, ``request_batches``, ``cancel_reads`` -> ``CompleteRead``, ``ReportStall``.
  The caller requests only chunks that are not in the cache.
* ``RequestChunks(host, attempts)``: send one request for all attempts, and set
  ``attempt.connection``; ``peer_dialled`` reports a new one. Feed ``chunks_arrived`` for bytes
  that match the CID, ``peer_refused`` with INVALID for others, ``connection_lost`` at its end.
* ``ReadSource``: read this range. ``source_read_progressed`` reports chunks as they arrive;
  ``source_ended`` fails the rest. ``CancelSourceRead`` ends the read.
* ``Store`` -> ``chunks_stored`` or ``chunks_not_stored``. The engine keeps the bytes until then.
  ``chunks_evicted`` reports evictions, ``cache_space_changed`` write-back pressure.
* ``peer_requested``, ``peer_cancelled``, ``peer_raised_priority``, ``peer_disconnected`` ->
  ``SendAnswers``. ``SendChunk`` without data means: send the chunk from the cache, or feed
  ``cache_read_failed``. ``LookUpContents`` -> ``contents_looked_up``. ``WatchDelivery`` ->
  ``answers_delivered``. ``CloseConnection``, then feed ``peer_disconnected``.
* ``announcement_received``, ``table_changed`` -> ``SendAnnouncement``, ``ForwardAnnouncement``.
  ``ReportBackoff`` and ``ReportStall`` are for the log.
"""
