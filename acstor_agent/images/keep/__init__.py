# SPDX-License-Identifier: Apache-2.0
"""Images that stay fully cached: pins, background fill, replicas, eviction.

An image that instances use is pinned and filled in the background, or kept as replicas on
several hosts.  Eviction takes away images that nobody uses any more.
"""
