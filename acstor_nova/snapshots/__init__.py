# SPDX-License-Identifier: Apache-2.0
"""Snapshots of disks on mirrors: as a delta for the gateway, or complete."""
