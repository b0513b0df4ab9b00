# SPDX-License-Identifier: Apache-2.0
"""What ties a host to its cloud.

To be read in this order: ``table_rules`` (which v-node table is in force), ``certificate_renewal``
(when to ask for the next certificate), ``interface_traffic`` (what of the host's traffic the
decision service hears).
"""
