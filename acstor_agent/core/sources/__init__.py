# SPDX-License-Identifier: Apache-2.0
"""Timeouts, failures and reads of image sources."""
