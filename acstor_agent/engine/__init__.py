# SPDX-License-Identifier: Apache-2.0
"""Decides how each chunk reaches this host and which chunks this host serves.

The engine is sans-IO, as h11 is: events go in and actions come out, each for many chunks. It has no
clock and no randomness of its own, and never inspects the bytes of chunks. The agent, the swarm
test and the simulator run the same engine. doc/source/contributor/exchange.rst lists its rules.

One read of a cold chunk
------------------------

1. ``engine_io.exchange`` feeds ``request_chunks`` to ``engine`` (``engine_io.engine_driver``).
2. ``fetch.pending_reads`` records the read and creates a ``transfer`` for each missing run.
3. ``fetch.source_selection`` orders the providers: holders, the home, the source, other owners.
4. ``fetch.requests_out`` numbers the attempt, and sends it within the limit of bytes in flight.
   All attempts for one host leave in one ``RequestChunks`` (``actions``).
5. ``engine_io.peer_client`` sends the request and compares the answer with the CID.
6. ``fetch.responses`` updates ``peer_state`` with the latency or the failure of the peer.
7. ``fetch.pending_reads`` emits ``Store`` and ``CompleteRead``, and cancels other attempts.
8. ``engine_io.cache_writer`` stores the chunk; ``gossip.announcements`` announces it.

On the peer, ``serve.authorization`` checks the proof, ``serve.peer_requests`` answers from the
cache or waits for a transfer, and ``upload_scheduler`` orders the answers.

Events and actions
------------------

Each event is a method of ``engine.Engine``. It takes the time first, in seconds of a monotonic
clock, and returns actions, which the caller carries out in order before it feeds the next event. An
action may start a task; its result is another event. ``next_s`` is the time of the next
``run_due_timers``. Events do not raise: unknown numbers, indexes, tokens and connections are
ignored. If an event raises all the same, call ``recover_from_fault(now, why)``.

* ``request_chunks``, ``request_batches``, ``cancel_reads`` -> ``CompleteRead``, ``ReportStall``. An
  empty batch completes at once. The caller requests only chunks that are not in the cache.
* ``RequestChunks(host, attempts)``: send one request for all attempts, and set
  ``attempt.connection``. Feed ``chunks_arrived`` for bytes that match the CID, ``peer_refused``
  with INVALID for others, ``connection_lost`` at the end of a connection. ``requested_chunk(host,
  number)`` returns the chunk that was requested.
* ``ReadSource``: read this range. ``source_read_progressed`` reports chunks as they arrive;
  ``source_ended`` fails the rest. ``CancelSourceRead`` ends the read.
* ``Store`` -> ``chunks_stored`` or ``chunks_not_stored``. The engine keeps the bytes until then.
  ``chunk_evicted`` reports evictions, ``room_changed`` write-back pressure.
* ``peer_requested``, ``peer_cancelled``, ``peer_raised_priority``, ``peer_disconnected`` ->
  ``SendAnswers``. ``SendChunk`` without data means: send the chunk from the cache, or feed
  ``cache_read_failed``. ``LookUpContents`` -> ``contents_looked_up``. ``WatchDelivery`` ->
  ``answers_delivered``. ``SendKeepalives``: pending requests are being worked on.
  ``CloseConnection``, then feed ``peer_disconnected``.
* ``announcement_received``, ``table_changed`` -> ``SendAnnouncement``, ``ForwardAnnouncement``.
  ``ReportBackoff`` and ``ReportStall`` are for the log.
"""
