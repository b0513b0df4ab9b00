# SPDX-License-Identifier: Apache-2.0
"""Shared by all acstor processes: formats, messages, keys, the ring, errors."""
