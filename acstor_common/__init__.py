# SPDX-License-Identifier: Apache-2.0
"""Shared by all acstor processes: formats, messages, keys, the ring, errors.

Packages, from top to bottom: ``service`` and ``wire``; ``identity``, ``ring`` and ``image``;
``disks``; ``formats``; ``util``; ``model``.  ``errors`` holds every exception of acstor.
"""
