# SPDX-License-Identifier: Apache-2.0
"""Writable disks that begin as an image."""
