# SPDX-License-Identifier: Apache-2.0
"""Membership: accepts samples, rejects replays, tracks load and addresses."""
