# SPDX-License-Identifier: Apache-2.0
"""Services for several layers: disk I/O, fault log, supervision, TLS, cleanup of processes."""
