# SPDX-License-Identifier: Apache-2.0
"""Options of keystoneauth sessions, with a default timeout; sessions without versions in URLs."""

import re
from typing import Any

from keystoneauth1 import loading
from keystoneauth1 import plugin
from keystoneauth1 import session as keystone_session
from oslo_config import cfg

_VERSION = re.compile(r"(?<![:/])/+(v\d+(\.\d+)?/*)?$", re.ASCII)
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


def unversioned(url: str) -> str:
    """Return a service's URL without a version, which some catalogs have, or a slash at its end."""
    return _VERSION.sub("", url)


class Session(keystone_session.Session):
    """A session for requests whose paths begin with the version of the service."""

    def get_endpoint(self, *args: Any, **kwargs: Any) -> str | None:
        """Return a service's URL without a version; None if the catalog has none."""
        found = super().get_endpoint(*args, **kwargs)
        return found and unversioned(found)

    def request(self, url: str, method: str, **kwargs: Any) -> Any:  # type: ignore[override]
        """Send a request to the catalog's or the configured URL, without its version."""
        if configured := kwargs.get("endpoint_override"):
            kwargs["endpoint_override"] = unversioned(configured)
        return super().request(url, method, **kwargs)


class _Loader(loading.session.Session):
    @property
    def plugin_class(self) -> type[keystone_session.Session]:
        return Session


def load_session(
    conf: cfg.ConfigOpts, group: str, auth: plugin.BaseAuthPlugin | None = None
) -> keystone_session.Session:
    """Return a :class:`Session` with the options of a group."""
    return _Loader().load_from_conf_options(conf, group, auth=auth)


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
