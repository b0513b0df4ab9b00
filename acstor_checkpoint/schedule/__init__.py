# SPDX-License-Identifier: Apache-2.0
"""Schedules checkpoints: worker threads, registration, garbage collection."""
