# SPDX-License-Identifier: Apache-2.0
"""Composition of the agent: ``agent`` joins parts that each own what belongs together."""
