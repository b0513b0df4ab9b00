# SPDX-License-Identifier: Apache-2.0
"""Policies that only experiments use: papers' baselines and variants of the agent's algorithms.

The agent finds them by entry points and never imports them; hosts of a cloud do without them.
"""
