# SPDX-License-Identifier: Apache-2.0
"""Connections between agents."""
