# SPDX-License-Identifier: Apache-2.0
"""Who reads and writes the host's disk next (Ling 2015).

To be read in this order: ``request``, ``request_queue``, ``policy``, ``scheduler``; the policies of
Linux: ``deadline``, ``anticipatory`` with ``running_mean``, ``cfq``; then ``navigator``,
``stream_profile``, ``seek_cost`` and ``pregather``.
"""
