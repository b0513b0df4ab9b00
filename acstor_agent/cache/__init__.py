# SPDX-License-Identifier: Apache-2.0
"""The public cache on this host's disk."""
