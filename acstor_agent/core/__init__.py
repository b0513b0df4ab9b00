# SPDX-License-Identifier: Apache-2.0
"""Decisions outside ``acstor_agent.engine``: deterministic, without I/O or clock.

``counters``, ``health_issues`` (parts that fail now), ``budget`` (memory for responses),
``send_queue`` (order on a connection to a peer), ``link_compression`` (which chunks to compress),
``longest_queue_drop`` (which waiters to drop).
"""
