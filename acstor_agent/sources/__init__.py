# SPDX-License-Identifier: Apache-2.0
"""Sources of image bytes, and the wrappers that make them dependable."""
