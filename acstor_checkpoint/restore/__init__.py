# SPDX-License-Identifier: Apache-2.0
"""Copies a checkpoint into the disk of a recovered server."""
