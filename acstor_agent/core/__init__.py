# SPDX-License-Identifier: Apache-2.0
"""Decisions outside ``acstor_agent.engine``: deterministic, without I/O or clock.

* ``images``: read planning, readahead, chunk states, pins and replicas;
* ``cache``: index, slots and eviction of the public cache;
* ``disks``: formats and write plans of writable disks;
* ``boot``: boot recording, and boot images in memory;
* ``mount``: FUSE negotiation, inode numbers, blocked requests;
* ``sources``: timeouts, circuit breakers and decoding of image sources;
* ``cloud``: v-node table rules, certificate renewal, interface traffic;
* ``disk_scheduling``: the order of the host's disk requests.

Here itself: ``counters``, ``health_issues`` (parts that fail now), ``budget`` (memory for
responses), ``send_queue`` (order on a connection to a peer), ``link_compression`` (which chunks to
compress for a peer), ``longest_queue_drop`` (which waiters to drop).
"""
