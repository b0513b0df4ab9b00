# SPDX-License-Identifier: Apache-2.0
"""Boot images: built by booting an image in a sandbox, or from recorded boots.

Holds the builder with its guest and NBD server, the store of traces from agents, and the
service that publishes boot images and announces them to hosts.
"""
