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

* ``images``: what of an image to read, to fetch ahead, and to keep whole;
* ``cache``: which chunks lie where on the host's disk;
* ``disks``: disks that guests write;
* ``boot``: boots, recorded and served from memory;
* ``mount``: what the kernel knows of this host's files, and who waits in it;
* ``sources``: how long a source is waited for, and when it is left alone;
* ``cloud``: what ties this host to its cloud: v-node tables, certificates, links;
* ``disk_scheduling``: who reads and writes the host's disk next.

What lies here itself serves several of them: ``counters`` (what an agent counts), ``health_issues``
(what does not work now), ``budget`` (memory for answers), ``send_queue`` (what leaves first on a
connection), ``link_compression`` (what is compressed for a peer), ``longest_queue_drop`` (who must
go when too many wait).
"""
