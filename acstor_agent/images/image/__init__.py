# SPDX-License-Identifier: Apache-2.0
"""All images of this host: attachment, reattachment, chunk lookup and usage."""
