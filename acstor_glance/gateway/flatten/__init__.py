# SPDX-License-Identifier: Apache-2.0
"""Flattens a delta from the request and its backing image into an image in Glance."""
