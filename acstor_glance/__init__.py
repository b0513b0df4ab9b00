# SPDX-License-Identifier: Apache-2.0
"""Services beside Glance: the listener, the gateway, the import plugin, commands."""
