# SPDX-License-Identifier: Apache-2.0
"""The public cache: index, slots, eviction and pins. No I/O.

In reading order: ``cache_slab`` and ``checksums`` (the slab file), ``cache_slot`` (slots and
eviction order), ``cache_pins``, ``slabs`` (the set of slab files), ``cache_actions``,
``public_cache`` (the whole), ``folder_health``.
"""
