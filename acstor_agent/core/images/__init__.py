# SPDX-License-Identifier: Apache-2.0
"""The images of a host: what of one to read, to fetch ahead, and to keep whole.

To be read in this order:

* one read: ``chunk_state``, ``read_plan``;
* what follows it: ``readahead``, ``unit_ahead``;
* which images are used, and what hosts keep of them: ``image_uses``, ``promise``, ``shares``,
  ``room``, ``leases``, ``keepers``;
* how fast they become whole: ``whole_pace``.
"""
