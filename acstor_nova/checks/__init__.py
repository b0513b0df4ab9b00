# SPDX-License-Identifier: Apache-2.0
"""Checks of a compute host that ``acstor-nova-manage check`` runs.

A check reads one thing and yields results with a remedy; it changes nothing.
"""
