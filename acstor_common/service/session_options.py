# SPDX-License-Identifier: Apache-2.0
"""Options of keystoneauth sessions, with a default timeout."""

from keystoneauth1 import loading
from oslo_config import cfg

_USERS = ("username", "user_id", "application_credential_id", "application_credential_name")


def session_options(timeout_s: int) -> list[cfg.Opt]:
    """Return a session's options, with this default of ``timeout``."""
    found: list[cfg.Opt] = [*loading.get_session_conf_options()]
    cfg.set_defaults(found, timeout=timeout_s)
    return found


def service_options(timeout_s: int, service_type: str) -> list[cfg.Opt]:
    """Return the options of a session and an adapter for a service of the catalogue."""
    found = session_options(timeout_s)
    found += loading.get_adapter_conf_options(include_deprecated=False)
    cfg.set_defaults(found, service_type=service_type, valid_interfaces=["internal", "public"])
    return found


def describe(name: str, group: cfg.ConfigOpts.GroupAttr) -> str:
    """Return the option group, user and Keystone URL of a client, no password."""
    url = _value(group, "url")
    users = [url.rpartition("@")[0].rpartition("//")[2].partition(":")[0]]
    users += [_value(group, option) for option in _USERS]
    user, keystone = next(filter(None, users), ""), _value(group, "auth_url")
    as_user = f", as {user}" if user else ""
    return f"[{name}]{as_user}{f' at {keystone}' if keystone else ''}"


def _value(group: cfg.ConfigOpts.GroupAttr, option: str) -> str:
    return str(group[option] or "") if option in group else ""
