# SPDX-License-Identifier: Apache-2.0
"""The model: hosts, network, storage and guests in virtual time.

Hosts run the agent's engine; the rest is queues on links. ``policies`` lists the variants
that a simulation compares.
"""
