# SPDX-License-Identifier: Apache-2.0
"""Decisions without I/O and clock."""
