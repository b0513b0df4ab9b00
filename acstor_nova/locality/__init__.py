# SPDX-License-Identifier: Apache-2.0
"""Locality of images for nova-scheduler: which hosts have an image, and how much of it."""
