# SPDX-License-Identifier: Apache-2.0
"""Decisions outside ``acstor_agent.engine``: deterministic, without I/O or clock."""
