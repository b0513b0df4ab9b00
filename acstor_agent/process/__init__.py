# SPDX-License-Identifier: Apache-2.0
"""Processes of the agent: supervisor, workers, relay, holder; service manager."""
