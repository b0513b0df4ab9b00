# SPDX-License-Identifier: Apache-2.0
"""The database: hosts, tables, traffic, images, enrolments and checkpoints."""
