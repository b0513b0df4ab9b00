# SPDX-License-Identifier: Apache-2.0
"""Images as Glance records them, and the artefacts that acstor stores."""
