# SPDX-License-Identifier: Apache-2.0
"""What runs inside an unmodified nova-compute: it puts mirrors where Nova downloads images."""
