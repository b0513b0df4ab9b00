# SPDX-License-Identifier: Apache-2.0
"""What a cloud of a given size would gain, as numbers and as one HTML page.

Also compares the model with what was measured.
"""
