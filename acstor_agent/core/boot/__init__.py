# SPDX-License-Identifier: Apache-2.0
"""Boots of guests.

In reading order: ``boot_activity`` (whether guests boot now), ``boot_recorder`` (boot traces),
``boot_memory`` and ``load_record`` (boot images in memory), ``prefetch_policy`` (boot images
fetched ahead), ``timeline_recorder`` (waits of a boot).
"""
