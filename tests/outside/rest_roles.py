# SPDX-License-Identifier: Apache-2.0
"""schemathesis on the REST API as each role, with a real Keystone, Glance, RabbitMQ and service.

schemathesis generates requests from ``openapi.json``, valid and invalid ones, and checks that each
response is documented.  Beside that, no role sees what belongs to another project, and a role that
may change nothing changes no row of the database.
"""

import collections
import contextlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa
from keystoneauth1 import loading
from keystoneauth1 import session as keystone_session

from acstor_common import errors
from acstor_common.wire import decision_messages
from acstor_decision.db import models
from tests.fakes import checkpoint_hosts
from tests.fakes import decision_databases
from tests.fakes import openapi_document
from tests.lab import decision
from tests.lab import runs
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.unit.decision.api import conftest as samples

SCHEMATHESIS = pathlib.Path(sys.executable).parent / "schemathesis"
CHECKS = (
    *("status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "hides_other_projects", "has_no_internal_error"),
)
PROJECT = "rest-tests"
NAME_OF_OTHERS = "of-stranger"  # a name in a response shows the image to the caller
OPEN_TO_TENANTS = {
    f"acstor:{name}": ""
    for name in ("image:list", "image:get", "image:hosts", "boot:list", "server:boots")
}
_RUN_S, _LEADS_S = 3600.0, 60.0


class Role(NamedTuple):
    """Who sends the requests.

    :ivar user: of the lab's Keystone; empty: a user with ``roles`` is made
    """

    name: str
    user: str = ""
    roles: tuple[str, ...] = ()
    is_system: bool = False
    may_change: bool = False


ROLES = (
    Role("anonymous"),
    Role("tenant", user="tenant"),
    Role("reader", roles=("reader",), is_system=True),
    Role("host", roles=("acstor-host",), may_change=True),
    Role("prepare", roles=("acstor-prepare",), may_change=True),
    Role("recovery", roles=("acstor-recovery",), may_change=True),
    Role("admin", user="admin", may_change=True),
)


class Verdict(NamedTuple):
    """What came of the requests of one role."""

    role: str
    statuses: collections.Counter[int]  # of the responses; 0: there was none
    failures: tuple[str, ...]


def run_roles(examples: int, seed: int) -> Iterator[Verdict]:
    """Yield the verdict of each role.

    :param examples: of each operation and phase
    :raises errors.Unusable: a service does not start
    """
    with runs.Run() as run:
        lab = cloud.Cloud(run.folder / "openstack")
        try:
            lab.start_image_services()
            with _images(lab) as image_ids:
                for role in ROLES:
                    folder = run.folder / role.name
                    folder.mkdir()
                    with _served(lab, folder, image_ids) as url:
                        _check_shown(lab, url, image_ids)
                        settings = _Settings(examples, seed)
                        tester = _Tester(url, folder, image_ids, settings)
                        yield tester.test(role, _token(lab, role))
        finally:
            lab.stop()


class _Images(NamedTuple):
    own: str
    others: str


class _Settings(NamedTuple):
    """How much schemathesis generates, and its seed."""

    examples: int
    seed: int


@contextlib.contextmanager
def _images(lab: cloud.Cloud) -> Iterator[_Images]:
    """Upload an image of the tenant, and a private one of another project."""
    operator, made = lab.connect("admin").image, []
    for user in ("tenant", "stranger"):
        image_id = str(uuid.uuid4())
        image = lab.connect(user).image.create_image(
            name=f"of-{user}",
            id=image_id,
            data=bytes(4096),
            disk_format="raw",
            container_format="bare",
            visibility="private",
        )
        prepared = {"acstor_state": "ready", "acstor_state_of": image_id}
        operator.update_image(image, acstor_chunk_map=str(uuid.uuid4()), **prepared)
        made.append(image_id)
    try:
        yield _Images(*made)
    finally:
        for image_id in made:
            operator.delete_image(image_id)


@contextlib.contextmanager
def _served(lab: cloud.Cloud, folder: pathlib.Path, images: _Images) -> Iterator[str]:
    """Yield the URL of the API over a database with rows of two projects."""
    connection = f"sqlite:///{folder}/decision.sqlite"
    with decision_databases.opened(connection) as store:
        held = decision_messages.HeldImage(size_bytes=4096)
        for number in range(3):
            sample = samples.sample(number, sent_s=time.time(), images=dict.fromkeys(images, held))
            samples.note(store, sample)
            store.record_checkpoint(checkpoint_hosts.taken(number + 1), time.time(), 10)
        samples.publish(store, 7, hosts=3)
    served = acstor_decision.DecisionApi(lab, folder / "api", connection, OPEN_TO_TENANTS)
    with decision.Instance(folder, "one", lab.rabbitmq.url, connection) as instance:
        runs.wait_for(instance.leads, _LEADS_S, "an instance that leads", instance.log)
        try:
            served.start()
            served.wait_ready()
            yield served.url
        finally:
            served.stop()


def _check_shown(lab: cloud.Cloud, url: str, images: _Images) -> None:
    """Check that an operator sees both images, so that a tenant could see the other one, too."""
    shown = lab.session("admin").get(f"{url}/v1/images").json()["images"]
    found = {image["image_id"]: image["name"] for image in shown}
    if found.keys() != {*images} or found[images.others] != NAME_OF_OTHERS:
        raise errors.Unusable(url, f"it shows other images than were uploaded: {found}")


def _token(lab: cloud.Cloud, role: Role) -> str:
    """Return a token of the role; empty: none."""
    if role.user:
        return str(lab.session(role.user).get_token())
    if not role.roles:
        return ""
    identity = lab.connect("admin").identity
    name = f"{PROJECT}-{role.name}"
    user = accounts.create_user(identity, name, accounts.User(PROJECT, role.roles))
    options = api.credentials(lab.keystone.auth_url, name, PROJECT)
    if role.is_system:
        for role_name in role.roles:
            found = identity.find_role(role_name, ignore_missing=False)
            identity.assign_system_role_to_user(user, found, "all")
        del options["project_name"], options["project_domain_id"]
        options["system_scope"] = "all"
    loader = loading.get_plugin_loader(options.pop("auth_type"))
    return str(keystone_session.Session(loader.load_from_options(**options)).get_token())


class _Tester:
    def __init__(
        self, url: str, folder: pathlib.Path, images: _Images, settings: _Settings
    ) -> None:
        self._url, self._folder, self._images, self._settings = url, folder, images, settings
        self._engine = sa.create_engine(f"sqlite:///{folder}/decision.sqlite")

    def test(self, role: Role, token: str) -> Verdict:
        """Send requests with a token; return what was wrong."""
        before = self._rows()
        scenarios = [*_scenarios(self._run(role, token))]
        failures = dict.fromkeys(itertools.chain.from_iterable(map(_failures, scenarios)))
        if not role.may_change and self._rows() != before:
            failures["rows of the database have changed"] = None
        statuses = collections.Counter(itertools.chain.from_iterable(map(_statuses, scenarios)))
        return Verdict(role.name, statuses, tuple(failures))

    def _run(self, role: Role, token: str) -> pathlib.Path:
        """Run schemathesis; return its report."""
        report, schema = self._folder / "report.ndjson", self._folder / "openapi.json"
        images = (*self._images, str(uuid.uuid4()))
        schema.write_text(json.dumps(openapi_document.with_examples(images)))
        words = [
            *(SCHEMATHESIS, "run", schema, "--url", self._url),
            *("--checks", ",".join(CHECKS), "--no-color"),
            *("--max-examples", self._settings.examples, "--seed", self._settings.seed),
            *("--phases", "examples,coverage,fuzzing", "--continue-on-failure"),
            *("--suppress-health-check", "all", "--warnings", "off"),
            *("--report", "ndjson", "--report-ndjson-path", report),
            *(("--header", f"X-Auth-Token:{token}") if token else ()),
        ]
        hidden = NAME_OF_OTHERS if role.name in {"anonymous", "tenant"} else ""
        own = {"SCHEMATHESIS_HOOKS": "rest_checks", "ACSTOR_HIDDEN": hidden}
        paths = {"PYTHONPATH": str(pathlib.Path(__file__).parent)}
        done = subprocess.run(
            [*map(str, words)],
            cwd=self._folder,
            env={**os.environ, **own, **paths},
            capture_output=True,
            text=True,
            timeout=_RUN_S,
            check=False,
        )
        if done.returncode not in (0, 1):  # 1: a check failed
            raise errors.Unusable("schemathesis", (done.stdout + done.stderr)[-1000:])
        return report

    def _rows(self) -> dict[str, list[Any]]:
        """Return what requests can change."""
        changed = (models.Enrolment, models.PendingTask, models.Checkpoint, models.Listener)
        with self._engine.connect() as link:
            found = {
                model.__tablename__: list(link.execute(sa.select(model.__table__)))
                for model in changed
            }
            drained = sa.select(models.Host.host, models.Host.is_drained)
            return found | {"drained": list(link.execute(drained))}


def _scenarios(report: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yield what schemathesis recorded of each operation and phase."""
    for line in report.read_text().splitlines():
        ended = json.loads(line).get("ScenarioFinished")
        if ended and "interactions" in ended["recorder"]:
            yield ended["recorder"]


def _failures(scenario: dict[str, Any]) -> Iterator[str]:
    for checks in scenario["checks"].values():
        for check in checks:
            if check["status"] == "failure":
                message = check["failure_info"]["failure"]["message"]
                yield f"{scenario['label']}: {check['name']}: {' '.join(message.split())[:200]}"


def _statuses(scenario: dict[str, Any]) -> Iterator[int]:
    for sent in scenario["interactions"].values():
        yield sent["response"]["status_code"] if sent["response"] else 0
