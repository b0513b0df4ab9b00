# SPDX-License-Identifier: Apache-2.0
"""Chooses the hosts that hold the checkpoints of a disk, and calls their vaults."""
