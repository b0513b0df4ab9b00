# SPDX-License-Identifier: Apache-2.0
"""Messages between agents.

``peer_wire`` frames the messages of ``peer_messages``, ``peer_request`` and ``replica_messages``.
"""
