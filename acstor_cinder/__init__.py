# SPDX-License-Identifier: Apache-2.0
"""Cinder's side of acstor: a volume driver."""
