# SPDX-License-Identifier: Apache-2.0
"""Control of the agent: socket, requests, tasks from the bus, status, metrics."""
