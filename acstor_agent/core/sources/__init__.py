# SPDX-License-Identifier: Apache-2.0
"""Sources that are slow, silent, or hang; and what is read of them.

To be read in this order: ``attempt_timeout`` (how long one attempt may take), ``circuit_breaker``
(when a source is asked last), ``source_refusals`` (what a source refuses), ``hung_calls`` (how
many calls may hang in the kernel), ``stored_reads`` (which bytes of a stored file make a piece of
an image), ``decode_slots`` (who decodes them next).
"""
