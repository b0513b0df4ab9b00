# SPDX-License-Identifier: Apache-2.0
"""Relation of a host to its cloud.

``table_rules`` (acceptance of v-node tables), ``certificate_renewal``, ``interface_traffic`` (the
traffic reported to the decision service).
"""
