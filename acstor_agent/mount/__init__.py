# SPDX-License-Identifier: Apache-2.0
"""The FUSE mount: its requests, and its takeover by a new worker."""
