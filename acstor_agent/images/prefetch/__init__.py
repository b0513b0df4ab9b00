# SPDX-License-Identifier: Apache-2.0
"""Prefetching of whole images and boot images, in batches, at low priority.

Nothing here protects the fetched chunks from eviction.
"""
