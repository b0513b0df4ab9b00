# SPDX-License-Identifier: Apache-2.0
"""The HTTP client: connector, stream, connection pool, check of range responses."""
