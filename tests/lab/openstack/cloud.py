# SPDX-License-Identifier: Apache-2.0
"""An OpenStack on this machine: its services, their order, and sessions of its users.

The rule: all that it has lies beneath one state folder, so two clouds do not meet.
"""

import pathlib
from collections.abc import Sequence

import openstack.connection
from keystoneauth1 import session

from tests.lab.openstack import accounts
from tests.lab.openstack import daemon
from tests.lab.openstack import glance
from tests.lab.openstack import installed
from tests.lab.openstack import keystone
from tests.lab.openstack import mariadb
from tests.lab.openstack import prepared
from tests.lab.openstack import rabbitmq


class Cloud:
    """The services beneath ``folder``; each can be stopped, killed and restarted by itself."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.rabbitmq = rabbitmq.RabbitMQ(folder)
        self.mariadb = mariadb.MariaDB(folder)
        self.keystone = keystone.Keystone(folder, self.mariadb)
        self.glance = glance.Glance(folder, self.mariadb, self.rabbitmq, self.keystone)

    def start_database(self) -> None:
        """Start MariaDB alone; what is prepared for other services is in it if they are installed.

        :raises errors.Unusable: it does not start; shows the end of its log
        """
        if installed.is_ready():
            prepared.restore(self.folder)
        self.mariadb.start()
        self.mariadb.wait_ready()

    def start_image_services(self) -> None:
        """Start what images need (broker, database, Keystone, Glance) and wait for it.

        :raises errors.Unusable: a service does not start; shows the end of its log
        """
        self.rabbitmq.start()
        self.start_database()
        accounts.announce(self.mariadb, {"identity": self.keystone.auth_url, **self._catalog()})
        start((self.keystone, self.glance))
        wait_ready((self.rabbitmq, self.keystone, self.glance))

    def _catalog(self) -> dict[str, str]:
        return {"image": self.glance.url}

    def services(self) -> list[daemon.Daemon]:
        """Return all services, those that others need first."""
        return [self.mariadb, self.rabbitmq, self.keystone, self.glance]

    def stop(self) -> None:
        """Stop every service that runs."""
        services = self.services()[::-1]
        for service in services:
            service.request_stop()
        for service in services:
            service.stop()

    def session(self, user: str = "admin", project: str | None = None) -> session.Session:
        """Return a session of one of :data:`accounts.USERS`."""
        return accounts.session(self.keystone.auth_url, user, project)

    def connect(
        self, user: str = "admin", project: str | None = None
    ) -> openstack.connection.Connection:
        """Return a connection of the SDK for one of :data:`accounts.USERS`."""
        return accounts.connect(self.keystone.auth_url, user, project)


def start(services: Sequence[daemon.Daemon]) -> None:
    """Start services side by side."""
    for service in services:
        service.start()


def wait_ready(services: Sequence[daemon.Daemon]) -> None:
    """Wait until all of them do their work."""
    for service in services:
        service.wait_ready()
