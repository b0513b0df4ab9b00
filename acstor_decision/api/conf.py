# SPDX-License-Identifier: Apache-2.0
"""Options of the REST API."""

from oslo_config import cfg
from oslo_middleware import cors
from oslo_middleware.healthcheck import opts as health_opts
from oslo_policy import opts as policy_opts

from acstor_common.identity import token_validation
from acstor_common.service import conf as common_conf
from acstor_decision.api import glance_client

GROUP = cfg.OptGroup("acstor_decision_api", title="The REST API of the decision service")

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "auth",
        default="keystone",
        choices=[
            ("keystone", "Keystone tokens, as [keystone_authtoken] configures"),
            (
                "none",
                "no authentication: the API trusts the headers of all clients; only for a server "
                "behind a proxy that authenticates",
            ),
        ],
        help="Authentication of requests.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the API and of the libraries that only it uses."""
    for group, options in list_opts():
        common_conf.register(conf, group, options)
    set_defaults()
    policy_opts.set_defaults(conf, policy_file="decision-policy.yaml")


def set_defaults() -> None:
    """Set the defaults of oslo.middleware's options, also for the sample."""
    cors.set_defaults(
        allow_credentials=False,  # clients authenticate by token, never by cookie
        allow_methods=["GET", "POST"],
        allow_headers=["X-Auth-Token", "OpenStack-API-Version", "X-OpenStack-Request-ID"],
        expose_headers=["OpenStack-API-Version", "X-OpenStack-Request-ID"],
    )
    token_validation.set_defaults()
    cfg.set_defaults(health_opts.HEALTHCHECK_OPTS, backends=["acstor_database"])


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for the sample generator."""
    return [(GROUP, OPTS), (glance_client.GROUP, glance_client.options())]
