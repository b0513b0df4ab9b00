# SPDX-License-Identifier: Apache-2.0
"""Comparison of an image with its backing image, and block deduplication."""
