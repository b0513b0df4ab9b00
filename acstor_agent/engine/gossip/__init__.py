# SPDX-License-Identifier: Apache-2.0
"""Announcements between hosts: which chunks a host holds, and what to prefetch.

Announcements are hints. A wrong one costs a request, never wrong bytes.
"""
