# SPDX-License-Identifier: Apache-2.0
"""What the kernel asks of the mount, and how a new worker takes it over."""
