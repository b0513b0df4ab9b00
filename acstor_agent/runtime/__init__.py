# SPDX-License-Identifier: Apache-2.0
"""Services that every layer above the engine uses.

They give access to the agent's own disk, count errors that nobody foresaw, encrypt connections
by TLS, and free what killed processes still hold.  A module belongs here if packages of more
than one layer need it, and it needs none of them.
"""
