# SPDX-License-Identifier: Apache-2.0
"""Providers of the switches' loads, plug-ins of ``acstor.switch_loads``."""
