# SPDX-License-Identifier: Apache-2.0
"""File formats of acstor: chunk maps, layouts, boot images, checkpoints.

``doc/source/format`` describes every byte of the formats that acstor defines.
"""
