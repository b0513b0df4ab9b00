# SPDX-License-Identifier: Apache-2.0
"""What happens when a guest reads a cold chunk.

``waiters`` makes a waiter of the batch, and a transfer of each content that is not under way.
``travels`` asks the first place that may give it: a holder, else the home, else the source.
``asking`` numbers the attempt, within what the peer may owe, and one ``Ask`` for each host leaves
with all its chunks.  The answer comes to ``answers``, which lets ``peer_book`` judge who gave it;
``waiters`` has the chunk stored, gives it to all who wait, and ends what else was under way for it.
When the last chunk of the batch is there, ``Complete`` says so.

Beside that way: ``through`` reads what this host is the home of, or nobody else gives; ``sources``
gives such reads their turn, ``lanes`` what is fetched ahead, ``retries`` what was in vain;
``searches`` asks every host for what the source has not got; ``preference`` says when guests are
better off at the source, ``sharing`` whether hosts read the same; ``parents`` whom hosts in step
ask instead of a home.  ``parts`` is what all of these share.
"""
