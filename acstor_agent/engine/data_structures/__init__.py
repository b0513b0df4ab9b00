# SPDX-License-Identifier: Apache-2.0
"""Data structures of the engine that know nothing of transfers: queues, caches, timers."""
