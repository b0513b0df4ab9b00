# SPDX-License-Identifier: Apache-2.0
"""Formats and plans of writable disks.

``disk_header`` (state file), ``disk_plan`` (reads and writes), ``restore_record`` and
``checkpoint_file`` (disks restored from checkpoints).
"""
