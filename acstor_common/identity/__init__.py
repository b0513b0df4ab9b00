# SPDX-License-Identifier: Apache-2.0
"""Proofs of identity: certificates, signatures, sealed boxes, Keystone tokens."""
