# SPDX-License-Identifier: Apache-2.0
"""Range readers, one module for each kind of store."""
