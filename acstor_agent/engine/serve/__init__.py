# SPDX-License-Identifier: Apache-2.0
"""Answers requests of peers: authorization, referrals, and the life of a request."""
