# SPDX-License-Identifier: Apache-2.0
"""What runs beside Glance: it prepares images before any host asks for them."""
