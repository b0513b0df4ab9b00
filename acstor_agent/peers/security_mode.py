# SPDX-License-Identifier: Apache-2.0
"""The values of ``peer_security``."""

import enum


class SecurityMode(enum.StrEnum):
    """How agents communicate; both sides must agree, which ALPN checks."""

    SECURE = "secure"  # mutual TLS 1.3, then encrypted frames
    INSECURE = "insecure"  # clear text; hosts are not authenticated
