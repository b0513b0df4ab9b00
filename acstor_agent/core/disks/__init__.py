# SPDX-License-Identifier: Apache-2.0
"""Formats and plans of writable disks."""
