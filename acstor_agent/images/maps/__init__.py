# SPDX-License-Identifier: Apache-2.0
"""Chunk maps of images, also of images that this host does not mirror."""
