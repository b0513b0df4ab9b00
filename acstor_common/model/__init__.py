# SPDX-License-Identifier: Apache-2.0
"""Basic values: IDs, chunk numbers, addresses; modules here import only ``errors`` of acstor."""
