# SPDX-License-Identifier: Apache-2.0
"""Prefetching of whole images and of boot images, before a guest asks for them.

All of it runs at low priority, in batches, and reports its progress.  Nothing here keeps what
it has fetched in the cache.
"""
