# SPDX-License-Identifier: Apache-2.0
"""Takes a checkpoint: snapshots a disk, reads what changed, writes the manifest.

``take_checkpoint`` runs all steps.  ``libvirt_domains`` and ``offline_export`` export a snapshot
of the disk over NBD, ``nbd_client`` reads it, ``disk_capture`` sends the chunks that changed.
"""
