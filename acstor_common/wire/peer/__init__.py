# SPDX-License-Identifier: Apache-2.0
"""Messages between agents; ``peer_wire`` frames those of the other modules."""
