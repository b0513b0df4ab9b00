# SPDX-License-Identifier: Apache-2.0
"""One connection between two agents: its Hello, client end and server end."""
