# SPDX-License-Identifier: Apache-2.0
"""FUSE state without I/O."""
