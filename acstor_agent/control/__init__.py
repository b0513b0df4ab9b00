# SPDX-License-Identifier: Apache-2.0
"""What may be asked of an agent, by whom and through which door, and what it tells of itself."""
