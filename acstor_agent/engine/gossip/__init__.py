# SPDX-License-Identifier: Apache-2.0
"""Announcements of chunks between hosts: a wrong one costs a request, never wrong bytes."""
