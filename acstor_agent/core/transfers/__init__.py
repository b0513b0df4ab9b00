# SPDX-License-Identifier: Apache-2.0
"""The exchange of one host: whom to ask for a chunk, whom to answer, in which order, how long.

Sans-IO, as h11 is: events in, actions out, each for many chunks at once; no clock, no randomness
that is not given, and bytes are never looked into.  The agent, the swarm and the simulator drive
the same rules.  doc/source/contributor/transfers.rst has every rule and its place.

What a shell builds on: ``transfers.Transfers`` and ``actions``
----------------------------------------------------------------

Each event is a method that takes the time first (seconds of one clock that never goes back) and
returns the actions, which are carried out in their order before the next event is fed; an action
may be begun in a thread or a task, and its outcome is an event of its own.  ``next_s`` says when
``tick`` is due.  No event raises: what names an unknown number, index, token or connection changes
nothing.  One that raises all the same is a fault of the machine: ``mend(now, why)`` ends what it
has left half done, and returns actions as an event does.

* ``wanted(now, batch, priority, token, deadline_s, is_patient)``, ``cancelled(now, token)`` ->
  ``Complete``, ``Told``.  A batch without chunks is complete at once.  Only what is not in the
  cache is wanted.
* ``Ask(host, attempts)``: send a request with each attempt's ``number``, ``want``, ``mode``,
  ``priority.at_peer`` and proof, and set ``attempt.connection``.  ``asked_of(host, number)`` says
  what a number that is answered was asked for: check length and CID against it, then
  ``chunks_arrived(now, host, [(number, data)])``, else ``refused(..., [(number, INVALID)])``.
  ``refused``, ``referred`` and ``alive`` are what the peer says; ``lost(now, host, connection)`` is
  the end of one connection, ``lost(now, host)`` says that none could be made.  ``Cancel`` and
  ``Hurry`` go to the connections on which the numbers were asked.
* ``ReadSource(number, image_id, priority, who, wants)``: read these chunks; ranges are made by the
  source.  ``source_gave(now, number, [(index, data or Failure)])`` may come several times, as
  chunks come, and ``source_ended(now, number, why)`` fails what it has not told.  ``HurryRead``
  means that it is more urgent now, ``CancelRead`` that nothing more of it is wanted.
* ``Store(chunks)`` -> ``stored`` or ``not_stored`` of each; until then the machine keeps it, and
  gives it to whoever wants it.  ``gone`` for what leaves the cache, ``has_room`` for the lanes.
* ``peer_asked(now, connection, host, requests)``, ``peer_cancelled``, ``peer_hurried``,
  ``peer_left`` -> ``Reply(connection, answers)``.  ``Given`` without data is in the cache: send it
  from its file, or ``could_not_read(now, connection, number)``.  ``LookUp`` ->
  ``looked_up(now, connection, [(number, content or Failure)])``.  ``Watch`` -> ``delivered``.
  ``Alive(connections)``: tell those who wait there that they are not forgotten.  ``Drop``: end the
  connection, then ``peer_left``.
* ``heard``, ``table_changed`` -> ``Tell``, ``Heard``; ``LeftAlone`` and ``Told`` are for the log.
* ``len(machine)`` contents are under way; ``counters`` says what has happened.

To be read in this order; each module knows only those of the lines above it:

* words: ``acstor_common.peer_request``, ``priority``, ``failure``, ``want``, ``settings``,
  ``outgoing``;
* lines, a heap, a table that forgets, and short names of hosts: ``turns``, ``deadlines``,
  ``generations``, ``host_keys``;
* who asks this host, a content under way, what a shell is to do: ``asker``, ``transfer``,
  ``actions``;
* whose home it is, who is how, whose answer leaves next: ``tables``, ``peer_book``, ``uplink``;
* what hosts tell each other unasked: the folder ``telling``;
* what this host wants, and what happens when a guest reads a cold chunk: the folder ``fetching``;
* what this host gives to others: the folder ``giving``;
* what a fault of these left half done: ``mending``;
* the events: ``transfers``.
"""
