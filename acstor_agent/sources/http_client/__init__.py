# SPDX-License-Identifier: Apache-2.0
"""The HTTP client: connector, stream, responses, connection pool, check of ranges."""
