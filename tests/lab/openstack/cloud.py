# SPDX-License-Identifier: Apache-2.0
"""An OpenStack on this machine: its services, their order, and user sessions.

All of its files are beneath one state folder, so two clouds are independent.
"""

import datetime
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import openstack.connection
from keystoneauth1 import session

from acstor_common import errors
from tests.lab import runs
from tests.lab.openstack import accounts
from tests.lab.openstack import compute
from tests.lab.openstack import daemon
from tests.lab.openstack import glance
from tests.lab.openstack import installed
from tests.lab.openstack import keystone
from tests.lab.openstack import mariadb
from tests.lab.openstack import neutron
from tests.lab.openstack import nova
from tests.lab.openstack import prepared
from tests.lab.openstack import rabbitmq

HOSTS = ("compute1", "compute2")
FLAVORS = {"small": 512, "large": 768}  #: name and memory in MiB
DISK_GB = 2


class Cloud:
    """The services beneath ``folder``, each with its own stop, kill and restart.

    :param hosts: names of the compute hosts
    """

    def __init__(self, folder: pathlib.Path, hosts: Sequence[str] = HOSTS) -> None:
        self.folder = folder
        self.rabbitmq = rabbitmq.RabbitMQ(folder)
        self.mariadb = mariadb.MariaDB(folder)
        self.keystone = keystone.Keystone(folder, self.mariadb)
        self.glance = glance.Glance(folder, self.mariadb, self.rabbitmq, self.keystone)
        needs = nova.Needs(self.mariadb, self.rabbitmq, self.keystone, self.glance)
        self.neutron = neutron.Neutron("neutron", folder)
        self.nova = nova.Controller(folder, needs)
        self.computes = [compute.Compute(host, folder, needs) for host in hosts]

    def start_database(self) -> None:
        """Start only MariaDB, with the prepared databases if the services are installed.

        :raises errors.Unusable: it does not start; has the end of its log
        """
        if installed.is_ready():
            prepared.restore(self.folder)
        self.mariadb.start()
        self.mariadb.wait_ready()

    def start_image_services(self) -> None:
        """Start the services for images (broker, database, Keystone, Glance) and wait.

        :raises errors.Unusable: a service does not start; has the end of its log
        """
        self.rabbitmq.start()
        self.start_database()
        accounts.announce(self.mariadb, self._catalog())
        start((self.keystone, self.glance))
        wait_ready((self.rabbitmq, self.keystone, self.glance))
        # Keystone refuses a valid token while another thread loads its policies for the first time.
        accounts.kept_session(self.keystone.auth_url, "admin").get(
            f"{self.glance.url}/v2/images?limit=1"
        )

    def _catalog(self) -> dict[str, str]:
        return {
            "identity": self.keystone.auth_url,
            "image": self.glance.url,
            "placement": self.nova.placement.url,
            "compute": f"{self.nova.api.url}/v2.1",
            "network": self.neutron.url,
        }

    def start_compute_services(self) -> None:
        """Start the services for servers; wait until each compute host accepts them.

        :raises errors.Unusable: a service does not start; has the end of its log
        """
        for host in self.computes:
            host.machine.boot()
        self.start_image_services()
        began = datetime.datetime.now(datetime.UTC)
        fresh = [host for host in self.computes if host.pid is None]
        start((self.neutron, *self.nova.services(), *self.computes))
        wait_ready((self.neutron, *self.nova.services(), *self.computes))
        nova_client = self.connect().compute
        for name, megabytes in FLAVORS.items():
            if not nova_client.find_flavor(name, ignore_missing=True):
                nova_client.create_flavor(name=name, ram=megabytes, vcpus=1, disk=DISK_GB)
        for host in fresh:
            runs.wait_for(
                functools.partial(self._may_build_on, host, nova_client, began),
                daemon.READY_DEADLINE_S,
                host.name,
                host.log,
            )

    def _may_build_on(self, host: compute.Compute, client: Any, began: datetime.datetime) -> bool:
        """Return whether the host reported after ``began``, and the scheduler knows it."""
        if host.pid is None:
            raise errors.Unusable(host.name, f"it has ended: {host.log()[-2000:]}")
        reports = [
            datetime.datetime.fromisoformat(service.updated_at).replace(tzinfo=datetime.UTC)
            for service in client.services(binary="nova-compute", host=host.host)
            if service.updated_at
        ]
        if not any(report > began for report in reports):
            return False
        return host.host in {hypervisor.name for hypervisor in client.hypervisors()}

    def services(self) -> list[daemon.Daemon]:
        """Return all services in start order."""
        machines = [part for host in self.computes for part in host.daemons()]
        image_services = [self.mariadb, self.rabbitmq, self.keystone, self.glance]
        return [*image_services, self.neutron, *self.nova.services(), *machines]

    def stop(self) -> None:
        """Stop all running services."""
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
        """Return the SDK connection of one of :data:`accounts.USERS`."""
        return accounts.connect(self.keystone.auth_url, user, project)


def start(services: Sequence[daemon.Daemon]) -> None:
    """Start services in parallel."""
    for service in services:
        service.start()


def wait_ready(services: Sequence[daemon.Daemon]) -> None:
    """Wait until all services are ready."""
    for service in services:
        service.wait_ready()
