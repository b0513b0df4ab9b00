# SPDX-License-Identifier: Apache-2.0
"""Flattens a base and a delta into a new image in Glance.

Reads the delta from the request and the base from its store, merges both into a raw or
qcow2 file, and uploads it while it is made. Holds the limits and the watchdog of a job.
"""
