# SPDX-License-Identifier: Apache-2.0
"""Commands for version 1 of the API, one module for each noun."""
