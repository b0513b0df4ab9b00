# SPDX-License-Identifier: Apache-2.0
"""Parts of the rules of ``core/transfers``, which are about no transfer; to be read in this order:

* what is asked for, and of whom: ``identity``, ``homes``;
* who holds what, told without being asked: ``neighbours``, ``listening``, ``content_index``,
  ``prefetch``, ``unmatched_prefetch``;
* who is busy or slow: ``uplink_places``, ``hedge``;
* what askers may use up: ``budget``;
* what nobody has: ``denials``, ``absences``.
"""
