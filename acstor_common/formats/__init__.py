# SPDX-License-Identifier: Apache-2.0
"""File formats: chunk maps, boot images, disk deltas, checkpoints, qcow2.

``doc/source/format`` describes every byte of the formats that acstor defines.
"""
