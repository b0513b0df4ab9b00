# SPDX-License-Identifier: Apache-2.0
"""Access to Glance, the decision service and the coordination service.

Holds the clients, and lookups over Glance's records: quota, leases, backing images, scopes,
support for range reads. Nothing here hashes or converts bytes.
"""
