# SPDX-License-Identifier: Apache-2.0
"""The model: hosts, network, storage and guests in virtual time."""
