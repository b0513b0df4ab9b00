# SPDX-License-Identifier: Apache-2.0
"""Who reads and writes the host's disk next (Ling 2015).

To be read in this order: ``request``, ``request_queue``, ``policy``, ``navigator``,
``stream_profile``, ``seek_cost``, ``pregather`` and ``scheduler``.
"""
