# SPDX-License-Identifier: Apache-2.0
"""Plug-in of an unmodified nova-compute: mirrors replace downloaded images."""
