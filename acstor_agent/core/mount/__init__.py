# SPDX-License-Identifier: Apache-2.0
"""What the kernel knows of this host's files, and who waits in it.

To be read in this order: ``fuse_init`` (what the two agree on), ``inodes`` (by which numbers the
kernel knows things), ``waits`` (requests of guests under way), ``processes`` (who is being killed
meanwhile).
"""
