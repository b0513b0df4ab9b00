# SPDX-License-Identifier: Apache-2.0
"""Decides; never waits, reads a clock or opens a file."""
