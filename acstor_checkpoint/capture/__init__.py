# SPDX-License-Identifier: Apache-2.0
"""Captures a checkpoint: snapshot of a disk, reading of changes, manifest.

``take_checkpoint`` runs all steps.  ``domains`` and ``offline_export`` export a snapshot of
the disk over NBD, ``nbd_client`` reads it, ``disk_capture`` sends the changed chunks.
"""
