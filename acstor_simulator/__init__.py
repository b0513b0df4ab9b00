# SPDX-License-Identifier: Apache-2.0
"""Simulates clouds in virtual time with the decision code of agents and service."""
