# SPDX-License-Identifier: Apache-2.0
"""The REST API of the decision service, for operators and their tools."""
