# SPDX-License-Identifier: Apache-2.0
"""The HTTP client of all sources that speak HTTP.

From the bottom up: connect to a server, move bytes over one connection, keep a pool of
connections, and check responses to range requests.  Sources know these modules; these modules
know no source.
"""
