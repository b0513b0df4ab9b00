# SPDX-License-Identifier: Apache-2.0
"""Relation of a host to its cloud: tables, certificates, reported traffic."""
