# SPDX-License-Identifier: Apache-2.0
"""Images that stay fully cached: pins, background fill, replicas, eviction."""
