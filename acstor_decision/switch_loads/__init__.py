# SPDX-License-Identifier: Apache-2.0
"""How busy the switches are: plug-ins of one small interface (``acstor.switch_loads``)."""
