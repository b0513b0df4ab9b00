# SPDX-License-Identifier: Apache-2.0
"""The per-host daemon: mirrors images on demand and exchanges chunks with its peers."""
