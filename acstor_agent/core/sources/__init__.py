# SPDX-License-Identifier: Apache-2.0
"""Timeouts, failures and reads of image sources.

``attempt_timeout``, ``circuit_breaker``, ``source_refusals``, ``hung_calls`` (calls stuck in the
kernel), ``stored_reads`` (ranges of a stored file to read), ``decode_slots`` (fair decoding).
"""
