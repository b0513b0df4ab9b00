# SPDX-License-Identifier: Apache-2.0
"""File formats: bytes to objects and back.

Chunk maps, boot images, disk deltas, checkpoints and qcow2.  ``doc/source/format`` describes every
byte of the formats that acstor defines.
"""
