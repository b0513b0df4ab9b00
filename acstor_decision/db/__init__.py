# SPDX-License-Identifier: Apache-2.0
"""What the service remembers: hosts, tables, traffic."""
