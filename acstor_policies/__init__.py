# SPDX-License-Identifier: Apache-2.0
"""Policies that only experiments use: papers' baselines and variants of the agent's algorithms.

The agent finds them by the entry points of this distribution and never imports them; hosts of a
cloud do without it.  ``variants`` names what each changes.
"""
