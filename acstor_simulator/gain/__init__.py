# SPDX-License-Identifier: Apache-2.0
"""Estimates a cloud's gain and validates the model against measurements."""
