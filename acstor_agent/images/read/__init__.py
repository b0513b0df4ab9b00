# SPDX-License-Identifier: Apache-2.0
"""One image, and the reads of its guests.

A mirror answers reads from the cache, the boot image in memory, or the exchange. Admission limits
the concurrent reads of a guest.
"""
