# SPDX-License-Identifier: Apache-2.0
"""Checks of a compute host for ``acstor-nova-manage check``, without changes."""
