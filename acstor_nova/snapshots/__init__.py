# SPDX-License-Identifier: Apache-2.0
"""Snapshots of disks whose backing image is a mirror.

Either only the delta is sent and the gateway flattens it, or ``qemu-img`` writes the whole
image with a hole map in place of the mirror.
"""
