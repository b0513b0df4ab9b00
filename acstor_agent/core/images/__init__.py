# SPDX-License-Identifier: Apache-2.0
"""Images of a host: read planning, readahead, usage, and what to keep.

To be read in this order:

* one read: ``chunk_state``, ``read_plan``;
* what follows it: ``readahead``;
* which images are used, and what hosts keep of them: ``image_usage``, ``pin_record``,
``replica_placement``,
  ``capacity``, ``replica_leases``, ``replica_holders``;
* how fast they become whole: ``fill_rate``.
"""
