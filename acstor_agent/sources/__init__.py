# SPDX-License-Identifier: Apache-2.0
"""Where image bytes come from, and the wrappers that make a source dependable."""
