# SPDX-License-Identifier: Apache-2.0
"""The commands of the API's version 1, one file for each noun."""
