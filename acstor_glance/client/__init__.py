# SPDX-License-Identifier: Apache-2.0
"""Clients of Glance, the decision service and the coordination service.

Includes lookups over Glance's records. Nothing here hashes or converts bytes.
"""
