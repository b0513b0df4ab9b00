# SPDX-License-Identifier: Apache-2.0
"""Records of boots on this host.

Recordings become traces, from which boot images are made.  Timelines tell operators what a boot
waited for, and for how long.
"""
