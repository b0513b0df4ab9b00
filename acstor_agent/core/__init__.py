# SPDX-License-Identifier: Apache-2.0
"""What decides.  Everything here is synchronous and deterministic; the shells around it act."""
