# SPDX-License-Identifier: Apache-2.0
"""Resources of version 1 of the REST API: types, handlers, and the tuple ``OPERATIONS`` of each."""
