# SPDX-License-Identifier: Apache-2.0
"""The order of the host's disk requests (Ling 2015).

In reading order: ``request``, ``request_queue``, ``policy``, ``navigator``, ``stream_profile``,
``seek_cost``, ``pregather``, ``scheduler``.
"""
