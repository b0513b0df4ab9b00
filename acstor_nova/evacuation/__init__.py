# SPDX-License-Identifier: Apache-2.0
"""Gives evacuated servers the disks of their newest checkpoints."""
