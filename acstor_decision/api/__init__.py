# SPDX-License-Identifier: Apache-2.0
"""The REST API of the decision service: what operators and their tools may see and ask for."""
