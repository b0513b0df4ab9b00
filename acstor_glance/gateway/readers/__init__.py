# SPDX-License-Identifier: Apache-2.0
"""How parts of objects are read: one module for each kind of store."""
