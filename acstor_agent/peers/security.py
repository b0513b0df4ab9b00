# SPDX-License-Identifier: Apache-2.0
"""How agents talk to each other: the values of ``peer_security``."""

import enum


class Security(enum.StrEnum):
    """Both sides must be set to the same; it is also what they agree on by ALPN."""

    SECURE = "secure"  # mutual TLS 1.3, then encrypted frames
    INSECURE = "insecure"  # clear text, and everybody is whom he says he is
