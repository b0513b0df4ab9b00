# SPDX-License-Identifier: Apache-2.0
"""All of acstor in the lab's cloud, as daemons that ``up --acstor`` starts.

The configuration follows install/quickstart.rst, on Nova's compute hosts.
"""

import pathlib
from collections.abc import Sequence

from tests.lab import agents
from tests.lab import decision
from tests.lab import guest_image
from tests.lab import runs
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import compute
from tests.lab.openstack import daemon
from tests.lab.openstack import ini
from tests.lab.openstack import machine

IMAGE = "guest"  #: name of the bootable image
PREPARED_WITHIN_S = 300.0


class Decision(daemon.Daemon):
    """``acstor-decision``, with the configuration of its REST API."""

    def __init__(self, rest_api: acstor_decision.DecisionApi) -> None:
        super().__init__("acstor-decision", rest_api.folder)
        self._api = rest_api

    def configure(self) -> None:
        """Write the configuration and create the tables."""
        self._api.configure()
        decision.manage(self._api.conf_file, "db-sync")

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the service's command line."""
        return [agents.BIN / "acstor-decision", "--config-file", self._api.conf_file]

    def is_ready(self) -> bool:
        """Return whether it is the leader."""
        return " is the leader\n" in self.log()


class Agent(machine.Inmate):
    """``acstor-agent`` on a compute host; it enrols at the decision service.

    ``user`` is its Keystone user, ``source`` the source of images.
    """

    user, source = "acstor", "glance"

    def __init__(self, host: compute.Compute, lab: cloud.Cloud) -> None:
        super().__init__(f"acstor-agent-{host.host}", host.machine)
        credentials = api.credentials(lab.keystone.auth_url, self.user)
        signs_in = {**credentials, "region_name": api.REGION}
        self.agent = agents.Agent(
            host.machine.inside,
            "",
            security=None,
            sections={
                "DEFAULT": {"transport_url": lab.rabbitmq.url},
                "enrolment": signs_in,
                "source_glance": signs_in,
            },
            sources=self.source,
            keep_images="host",
            metrics_listen=f"{host.machine.address}:9464",
        )

    def configure(self) -> None:
        """Write its configuration."""
        self.agent.configure()

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the agent's command line on the machine."""
        return [*self.machine.enter(), *self.agent.argv]

    def is_ready(self) -> bool:
        """Return whether it serves images and has a certificate."""
        return self.agent.is_serving() and self.agent.status()["identity"]["signers"] > 0


class Acstor:
    """acstor's services in a cloud; each can be stopped, killed and restarted alone.

    :param agent_class: of the agents on its compute hosts
    """

    def __init__(self, lab: cloud.Cloud, agent_class: type[Agent] = Agent) -> None:
        self._lab = lab
        self._database = lab.folder / "acstor.sqlite"
        self.api = acstor_decision.DecisionApi(lab, lab.folder, f"sqlite:///{self._database}")
        self.listener = acstor_glance.Listener("acstor-listener", lab, lab.folder)
        self.decision = Decision(self.api)
        self.agents = [agent_class(host, lab) for host in lab.computes]

    def clear(self) -> None:
        """Delete the state of an earlier cloud in this folder, possibly of another user."""
        self._database.unlink(missing_ok=True)
        for one in self.agents:
            one.agent.clear()

    def services(self) -> list[daemon.Daemon]:
        """Return the services in start order."""
        return [self.decision, self.api, self.listener, *self.agents]

    def start(self) -> None:
        """Start the cloud with acstor, and upload an image.

        :raises errors.Unusable: a service does not start; has the end of its log
        """
        lab = self._lab
        lab.glance.changes = ini.merged(
            acstor_glance.plugin_sections(lab, lab.folder / "acstor-plugin"),
            {"DEFAULT": acstor_glance.PROTECTIONS},
        )
        for host, one in zip(lab.computes, self.agents, strict=True):
            host.changes = compute.acstor_options(one.agent)
        lab.start_compute_services()
        self.api.register()
        cloud.start(self.services())
        cloud.wait_ready(self.services())
        self._upload_image()

    def _upload_image(self) -> None:
        """Upload a bootable image, and wait until its ``acstor_state`` is ready."""
        images = self._lab.connect().image
        image = images.find_image(IMAGE) or images.create_image(
            name=IMAGE,
            disk_format="raw",
            container_format="bare",
            visibility="public",
            filename=str(guest_image.ensure().raw),
        )

        def is_prepared() -> bool:
            return bool(images.get(f"/images/{image.id}").json().get("acstor_state") == "ready")

        runs.wait_for(is_prepared, PREPARED_WITHIN_S, IMAGE, self.listener.log)

    def stop(self) -> None:
        """Stop all running services; guests lose their disks with the agents."""
        for service in self.services()[::-1]:
            service.stop()
