# SPDX-License-Identifier: Apache-2.0
"""Keystone authentication of an agent: options and plugin."""

import copy
from typing import Any

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from keystoneauth1 import plugin
from oslo_config import cfg

from acstor_common import errors

AUTH_TYPES = ("password", "v3applicationcredential")


def options() -> list[cfg.Opt]:
    """Return the options of all authentication types, each once."""
    auth_type_option = cfg.StrOpt(
        "auth_type",
        default=AUTH_TYPES[0],
        choices=AUTH_TYPES,
        help="How to sign in at Keystone: with a user's password or with an application "
        "credential. The user needs the role acstor-reader alone.",
    )
    found: dict[str, cfg.Opt] = {auth_type_option.dest: auth_type_option}
    for auth_type in AUTH_TYPES:
        for opt in loading.get_auth_plugin_conf_options(auth_type):
            own = copy.copy(opt)
            own.required = False  # not needed without this source
            own.help = f"{(opt.help or opt.name).rstrip('.')}, to sign in at Keystone."
            found.setdefault(own.dest, own)
    return list(found.values())


def auth(group: cfg.ConfigOpts.GroupAttr, name: str) -> plugin.BaseAuthPlugin:
    """Return the authentication plugin for an option group.

    :raises errors.Unusable: an option is missing
    """
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
