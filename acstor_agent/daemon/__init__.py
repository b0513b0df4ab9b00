# SPDX-License-Identifier: Apache-2.0
"""Composition of the agent: ``agent`` joins the parts of the other modules."""
