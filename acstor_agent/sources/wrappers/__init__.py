# SPDX-License-Identifier: Apache-2.0
"""Sources around other ones: timeouts, stored layouts, whole downloads."""
