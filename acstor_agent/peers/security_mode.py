# SPDX-License-Identifier: Apache-2.0
"""The values of ``peer_security``."""

import enum


class SecurityMode(enum.StrEnum):
    """How agents talk to each other; both sides must have the same, which ALPN checks."""

    SECURE = "secure"  # mutual TLS 1.3, then encrypted frames
    INSECURE = "insecure"  # clear text; no host proves who it is
