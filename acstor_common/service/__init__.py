# SPDX-License-Identifier: Apache-2.0
"""Shared by commands and daemons: configuration, logs, signals, metrics."""
