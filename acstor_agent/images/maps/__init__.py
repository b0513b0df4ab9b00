# SPDX-License-Identifier: Apache-2.0
"""Chunk maps of images, also of images that this host does not mirror.

These modules map the files of chunk maps into memory, and read single pages of a map from the
source for requests of peers.  They know no mirror and no guest.
"""
