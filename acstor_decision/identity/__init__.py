# SPDX-License-Identifier: Apache-2.0
"""Certificates of hosts and trust in them."""
