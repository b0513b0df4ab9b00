# SPDX-License-Identifier: Apache-2.0
"""What the kernel knows of this host's files, and who waits in it.

To be read in this order: ``fuse_init`` (what the two agree on), ``inodes`` (by which numbers the
kernel knows things), ``blocked_requests`` (requests of guests under way), ``process_state`` (who
is being killed meanwhile).
"""
