# SPDX-License-Identifier: Apache-2.0
"""Disks that guests write.

To be read in this order: ``disk_header`` (what is kept of a disk), ``disk_plan`` (what a read or a
write of it needs), ``restore_record`` (what is kept of one that was made of a checkpoint),
``checkpoint_file`` (the file that such a one is shown as).
"""
