# SPDX-License-Identifier: Apache-2.0
"""One connection between two agents: its Hello, its asking end and its answering end."""
