# SPDX-License-Identifier: Apache-2.0
"""Boots of guests: detection, traces, boot images in memory, timelines."""
