# SPDX-License-Identifier: Apache-2.0
"""Boots of guests.

To be read in this order: ``boot_activity`` (whether guests boot now), ``boot_recorder`` (what they
read, of which boot images are made), ``boot_memory`` (which boot images lie in memory),
``load_record`` (how one came there), ``prefetch_policy`` (which come before a guest asks),
``timeline_recorder`` (where the time of a boot went).
"""
