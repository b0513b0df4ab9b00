# SPDX-License-Identifier: Apache-2.0
"""Comparison of an image with its base, and deduplication of their blocks.

Counts the bytes of an image that its base lacks, and shares equal blocks in file stores
whose file system supports it.
"""
