# SPDX-License-Identifier: Apache-2.0
"""Records of boots: traces, from which boot images are made, and timelines."""
