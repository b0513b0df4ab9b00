# SPDX-License-Identifier: Apache-2.0
"""Writable disks, based on an image."""
