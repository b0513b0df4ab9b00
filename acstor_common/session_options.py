# SPDX-License-Identifier: Apache-2.0
"""The options of keystoneauth's sessions, with the deadline that keystoneauth leaves out."""

from keystoneauth1 import loading
from oslo_config import cfg


def session_options(timeout_s: int) -> list[cfg.Opt]:
    """Return the options of a session.

    :param timeout_s: default of ``timeout``: the longest that a server may be silent, in seconds
    """
    found: list[cfg.Opt] = [*loading.get_session_conf_options()]
    cfg.set_defaults(found, timeout=timeout_s)
    return found
