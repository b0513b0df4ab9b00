# SPDX-License-Identifier: Apache-2.0
"""The listener: brings images in Glance to their desired state.

Holds the service with its message handlers, the reconcilers for artefacts and for deletion
protection, and the checks over all images that the commands run.
"""
