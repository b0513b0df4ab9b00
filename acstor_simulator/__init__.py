# SPDX-License-Identifier: Apache-2.0
"""A cloud in virtual time: the cores that decide in production, on a network of queues."""
