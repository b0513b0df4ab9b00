# SPDX-License-Identifier: Apache-2.0
"""The engine: decides how each chunk reaches this host, and which chunks this host gives to peers.

The engine is sans-IO, as h11 is.  Events go in and actions come out, each for many chunks.  It has
no clock, no randomness of its own, and never looks into bytes.  The agent, the swarm and the
simulator run the same engine.  doc/source/contributor/exchange.rst lists every rule.

One read of a cold chunk
------------------------

1. ``engine_io.exchange`` feeds ``wanted`` to ``engine``.
2. ``fetch.pending_reads`` records the read and creates a ``transfer`` for each missing chunk.
3. ``fetch.source_selection`` orders the places: holders, the home, the source, other owners.
4. ``fetch.requests_out`` numbers the attempt within the credit of the peer.  All attempts for one
   host leave in one ``Ask`` (``actions``).
5. ``engine_io.peer_client`` sends the request and checks the answer against the CID.
6. ``fetch.responses`` updates ``peer_state`` with the latency or the failure of the peer.
7. ``fetch.pending_reads`` emits ``Store`` and ``Complete``, and cancels other attempts.
8. ``engine_io.cache_writer`` stores the chunk; ``gossip.announcements`` announces it.

On the peer, ``serve.authorization`` checks the proof, ``serve.peer_requests`` answers from the
cache or waits for a transfer, and ``upload_scheduler`` orders the answers.

Events and actions
------------------

Each event is a method of ``engine.Engine``.  It takes the time first, in seconds of a monotonic
clock, and returns actions.  The caller carries them out in order before it feeds the next event.
An action may start a task; its result is another event.  ``next_s`` is the time of the next
``tick``.  Events do not raise: unknown numbers, indexes, tokens and connections are ignored.  If
an event raises all the same, call ``mend(now, why)`` (``recovery``).

* ``wanted``, ``each_wanted``, ``cancelled`` -> ``Complete``, ``Told``.  An empty batch completes at
  once.  The caller asks only for chunks that are not in the cache.
* ``Ask(host, attempts)``: send one request for all attempts, and set ``attempt.connection``.
  ``asked_of(host, number)`` returns what a number was asked for.  Feed ``chunks_arrived`` for bytes
  that match the CID, ``refused`` with INVALID for others, ``lost`` at the end of a connection.
* ``ReadSource``: read this range.  ``source_gave`` reports chunks as they arrive;
  ``source_ended`` fails the rest.  ``CancelRead`` ends the read.
* ``Store`` -> ``stored`` or ``not_stored``.  The engine keeps the bytes until then.  ``gone``
  reports evictions, ``has_room`` write-back pressure.
* ``peer_asked``, ``peer_cancelled``, ``peer_hurried``, ``peer_left`` -> ``Reply``.  ``Given`` that
  has no data means: send the chunk from the cache, or feed ``could_not_read``.  ``LookUp`` ->
  ``looked_up``.  ``Watch`` -> ``delivered``.  ``Alive``: send a keepalive.  ``Drop``: close the
  connection, then feed ``peer_left``.
* ``heard``, ``table_changed`` -> ``Tell``, ``Heard``.  ``LeftAlone`` and ``Told`` are for the log.
"""
