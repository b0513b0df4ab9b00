# SPDX-License-Identifier: Apache-2.0
"""Daemon of each host that takes checkpoints and stores those of other hosts.

``capture_service`` takes checkpoints of this host's servers: ``schedule`` decides when, ``capture``
reads disks, ``holders`` sends chunks to other hosts.  ``vault_service`` serves the ``vault``, which
stores checkpoints of other hosts.  ``restore`` copies a checkpoint into a recovered server's disk.
"""
