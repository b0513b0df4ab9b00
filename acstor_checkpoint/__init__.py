# SPDX-License-Identifier: Apache-2.0
"""The daemon of each host that takes checkpoints and keeps those of other hosts.

``capture_service`` takes checkpoints of the servers of this host: ``schedule`` decides when,
``capture`` reads their disks, ``holders`` sends the chunks to other hosts.  ``vault_service``
serves the ``vault``, which keeps the checkpoints of other hosts.  ``restore`` copies a checkpoint
into the disk of a recovered server.
"""
