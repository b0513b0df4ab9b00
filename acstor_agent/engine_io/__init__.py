# SPDX-License-Identifier: Apache-2.0
"""The I/O shell of the engine: feeds it events and carries out its actions."""
