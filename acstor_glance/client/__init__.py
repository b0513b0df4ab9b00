# SPDX-License-Identifier: Apache-2.0
"""Clients of Glance, the decision service and the coordination service."""
