# SPDX-License-Identifier: Apache-2.0
"""Resources of version 1 of the REST API, one module for each.

A module defines its types, its handlers, and the tuple ``OPERATIONS``.
"""
