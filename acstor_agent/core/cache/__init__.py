# SPDX-License-Identifier: Apache-2.0
"""The public cache: which chunk lies where on the host's disk, and what makes room for it.

To be read in this order: ``cache_slab`` (the bytes of a file) with ``checksums``, ``cache_slot``
(the places in it, and their order), ``cache_pins`` (what stays), ``slabs`` (how many files),
``cache_actions`` (what the shell is to do), ``public_cache`` (all of it), ``folder_health`` (when
the folder is looked at again).
"""
