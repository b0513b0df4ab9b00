# SPDX-License-Identifier: Apache-2.0
"""What this host gives to others.

To be read in this order: ``rights`` says who may have what; ``asker``, beside this folder, is a
request, the connection that it came on and the host that sent it; ``referrals`` knows who was given
what, and whom to send the next one to; ``in_step`` chooses between a tree and a ring; ``uplink``,
beside this folder, says whose turn it is; ``requests`` is what happens to a request.
"""
