# SPDX-License-Identifier: Apache-2.0
"""The process: who holds the mount while workers come and go, and what systemd is told."""
