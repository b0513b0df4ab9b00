# SPDX-License-Identifier: Apache-2.0
"""Servers of this host in libvirt, and snapshots of their disks."""
