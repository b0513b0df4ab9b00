# SPDX-License-Identifier: Apache-2.0
"""Fetches chunks for local readers, and from the source on behalf of peers."""
