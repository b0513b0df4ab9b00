# SPDX-License-Identifier: Apache-2.0
"""Messages between agents, on the control socket and on the message bus."""
