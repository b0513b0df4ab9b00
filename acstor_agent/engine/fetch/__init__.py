# SPDX-License-Identifier: Apache-2.0
"""Fetches chunks for this host: from peers, or from the source on behalf of a cloud."""
