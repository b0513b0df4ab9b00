# SPDX-License-Identifier: Apache-2.0
"""Users of the lab's Keystone, and its service catalog.

All users have the same password (:data:`api.PASSWORD`).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import openstack.connection
from keystoneauth1 import loading
from keystoneauth1 import session as keystone_session

from tests.lab.openstack import api
from tests.lab.openstack import mariadb

DOMAIN = "default"
SERVICES = {"image": "glance", "placement": "placement", "compute": "nova", "network": "neutron"}


@dataclasses.dataclass(frozen=True)
class User:
    """A user and the roles in their project."""

    project: str
    roles: tuple[str, ...]


USERS: Mapping[str, User] = {
    "admin": User("admin", ("admin",)),
    "glance": User("service", ("admin", "service")),
    "nova": User("service", ("service",)),  # Glance gets its token besides the tenant's
    "placement": User("service", ("admin", "service")),
    "acstor": User("service", ("admin", "service")),  # of agents and acstor's own services
    "tenant": User("tenant", ("member",)),
    "stranger": User("stranger", ("member",)),  # a tenant of another project
}


def session(auth_url: str, user: str, project: str | None = None) -> keystone_session.Session:
    """Return a session of one of :data:`USERS`."""
    options = api.credentials(auth_url, user, project or USERS[user].project)
    loader = loading.get_plugin_loader(options.pop("auth_type"))
    return keystone_session.Session(loader.load_from_options(**options))


kept_session = functools.cache(session)
"""Cached sessions: one token and one service discovery per user."""


def connect(
    auth_url: str, user: str = "admin", project: str | None = None
) -> openstack.connection.Connection:
    """Return a user's SDK connection, one of :data:`USERS`; its session is cached."""
    return openstack.connection.Connection(
        session=kept_session(auth_url, user, project), region_name=api.REGION
    )


def register(auth_url: str) -> None:
    """Create users, projects and catalog in a new Keystone with an admin only."""
    identity = connect(auth_url).identity
    for name, user in USERS.items():
        if name == "admin":
            continue
        create_user(identity, name, user)
    for kind, name in SERVICES.items():
        service = identity.create_service(name=name, type=kind)
        for interface in ("public", "internal", "admin"):
            identity.create_endpoint(
                service_id=service.id,
                interface=interface,
                url=f"http://not-running.invalid/{name}",
                region_id=api.REGION,
            )


def create_user(identity: Any, name: str, user: User) -> Any:
    """Create a user, and its project and roles if they are missing; return Keystone's record."""
    project = identity.find_project(user.project) or identity.create_project(
        name=user.project, domain_id=DOMAIN
    )
    account = identity.create_user(
        name=name, password=api.PASSWORD, domain_id=DOMAIN, default_project_id=project.id
    )
    for role_name in user.roles:
        role = identity.find_role(role_name) or identity.create_role(name=role_name)
        identity.assign_project_role_to_user(project, account, role)
    return account


def name_service(identity: Any, kind: str, name: str, url: str) -> None:
    """Set a service in Keystone's catalog; replaces one of the same type."""
    for old in identity.services(type=kind):
        identity.delete_service(old)
    service = identity.create_service(name=name, type=kind)
    for interface in ("internal", "public"):
        identity.create_endpoint(
            service_id=service.id, interface=interface, url=url, region_id=api.REGION
        )


def announce(database: mariadb.MariaDB, urls: Mapping[str, str]) -> None:
    """Write the URLs of this cloud's services, by type, to Keystone's catalog."""
    database.execute(
        *(
            "UPDATE endpoint, service SET endpoint.url = "
            f"'{url}' WHERE endpoint.service_id = service.id AND service.type = '{kind}'"
            for kind, url in urls.items()
        ),
        database="keystone",
    )
