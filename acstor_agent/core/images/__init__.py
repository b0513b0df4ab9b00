# SPDX-License-Identifier: Apache-2.0
"""Images of a host: read planning, readahead, usage, and what to keep."""
