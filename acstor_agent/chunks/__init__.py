# SPDX-License-Identifier: Apache-2.0
"""The way of a chunk into this host, and from it to others."""
