# SPDX-License-Identifier: Apache-2.0
"""Boot images: built by booting an image in a sandbox, or from recorded boots."""
