# SPDX-License-Identifier: Apache-2.0
"""Disks in files: qcow2, deltas to a base image, local files."""
