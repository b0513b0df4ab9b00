# SPDX-License-Identifier: Apache-2.0
"""Announcements of chunks between hosts: hints, of which a wrong one costs only a request."""
