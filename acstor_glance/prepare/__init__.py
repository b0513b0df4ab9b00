# SPDX-License-Identifier: Apache-2.0
"""Preparation of one image: check, convert, hash, publish its chunk map."""
