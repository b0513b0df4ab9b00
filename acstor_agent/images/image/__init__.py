# SPDX-License-Identifier: Apache-2.0
"""All images of this host: attached, detached, looked up, in use.

These modules open mirrors, attach images again after a restart, answer which chunk an image
names at an offset, and know which images the instances of this host use.
"""
