# SPDX-License-Identifier: Apache-2.0
"""FUSE state without I/O.

``fuse_init`` (negotiation with the kernel), ``inodes`` (inode numbers and handles),
``blocked_requests`` (waiting requests of guests), ``process_state`` (killed processes).
"""
