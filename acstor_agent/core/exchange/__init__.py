# SPDX-License-Identifier: Apache-2.0
"""Whom to ask for a chunk that is not here, and what hosts tell each other.

To be read in this order:

* what is asked for, why, and of whom: ``identity``, ``errand``, ``homes``, ``places``,
  ``preference``;
* who holds what, told without being asked: ``neighbours``, ``gossip``, ``listening``,
  ``content_index``, ``prefetch``, ``copies``;
* who is busy or slow: ``uplink_places``, ``referral``, ``hedge``, ``pace``, ``peer_health``;
* what strangers and askers may use up: ``handshakes``, ``budget``;
* what nobody has: ``denials``, ``absences``.
"""
