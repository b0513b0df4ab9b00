# SPDX-License-Identifier: Apache-2.0
"""Keystone authentication of an agent: options, plugin, and URLs of the catalog."""

import copy
import re
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Self

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from keystoneauth1 import plugin
from keystoneauth1 import session as keystone_session
from oslo_config import cfg
from oslo_config import types

from acstor_common import errors

AUTH_TYPES = ("password", "v3applicationcredential")
INTERFACES = ("internal", "public")
"""Interfaces of the catalog, the preferred one first; DevStack has only public ones."""
_SOME_INTERFACES = re.compile(r"^(internal|public|admin)(\s*,\s*(internal|public|admin))*$")


class Catalog(NamedTuple):
    """Which URLs of Keystone's catalog are used."""

    region_name: str | None = None
    interfaces: Sequence[str] = INTERFACES

    @classmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> Self:
        """Return the choice in a group with :func:`catalog_options`."""
        interfaces = [name.strip() for name in group.valid_interfaces.split(",")]
        return cls(group.region_name or None, interfaces)

    def url_of(self, session: keystone_session.Session, service_type: str, what: str) -> str:
        """Return the URL of a service, or raise EndpointNotFound if the catalog has none."""
        url = session.get_endpoint(
            service_type=service_type, region_name=self.region_name, interface=list(self.interfaces)
        )
        if not url:
            region = f" in the region {self.region_name}" if self.region_name else ""
            raise exceptions.EndpointNotFound(
                f"its catalog has no URL of {what} (service type {service_type}){region} with the "
                f"interface {' or '.join(self.interfaces)} (see valid_interfaces)"
            )
        return str(url)


DEFAULT_CATALOG = Catalog()


def catalog_options() -> list[cfg.Opt]:
    """Return the options that choose a URL of Glance from the catalog."""
    return [
        cfg.StrOpt("region_name", help="Region of Glance's URL in the catalog."),
        cfg.Opt(
            "valid_interfaces",
            type=types.String(regex=_SOME_INTERFACES),
            default=",".join(INTERFACES),
            help="Interfaces of Glance's URL in the catalog, the preferred one first, separated "
            "by commas: internal, public, admin.",
        ),
    ]


def options() -> list[cfg.Opt]:
    """Return the options of all authentication types, each once."""
    auth_type_option = cfg.StrOpt(
        "auth_type",
        default=AUTH_TYPES[0],
        choices=AUTH_TYPES,
        help="How to authenticate with Keystone: by a user's password or by an application "
        "credential. The user needs the role acstor-reader alone, or acstor-host with grants.",
    )
    found: dict[str, cfg.Opt] = {auth_type_option.dest: auth_type_option}
    for auth_type in AUTH_TYPES:
        for opt in loading.get_auth_plugin_conf_options(auth_type):
            own = copy.copy(opt)
            own.required = False  # not needed without this source
            own.help = f"{(opt.help or opt.name).rstrip('.')}, to authenticate with Keystone."
            found.setdefault(own.dest, own)
    return list(found.values())


def auth(group: cfg.ConfigOpts.GroupAttr, name: str) -> plugin.BaseAuthPlugin:
    """Return an option group's authentication plugin; raise Unusable if an option is missing."""
    remedy = "Name the service user that reads the images"
    if not group.auth_url:
        raise errors.Unusable(f"[{name}] auth_url", "it is not set", remedy)
    try:
        loader: loading.BaseLoader[Any] = loading.get_plugin_loader(group.auth_type)
        made: plugin.BaseAuthPlugin = loader.load_from_options_getter(
            lambda opt: group[opt.dest] or None
        )
    except exceptions.ClientException as error:
        raise errors.Unusable(f"[{name}]", str(error), remedy) from error
    return made
