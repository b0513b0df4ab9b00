# SPDX-License-Identifier: Apache-2.0
"""Sends hosts a task for an image, and follows its progress."""

import argparse
import time
import uuid
from collections.abc import Mapping
from typing import Any

from osc_lib import exceptions
from osc_lib.command import command

from acstor_osc import client
from acstor_osc import output_columns

WAIT_S = 3600.0
RECEIVED_WITHIN_S = 60.0  # time until a host reports that it received a task, several collections
INSTANT = ("hydrate", "pause", "resume", "unpin")  # kinds of tasks that a host completes on receipt


def image_id_of(manager: Any, name: str) -> str:
    """Return the ID of an image; ``name`` is its ID or its name in Glance."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        found: str = manager.sdk_connection.image.find_image(name, ignore_missing=False).id
        return found


def send_task(
    running: command.Command,
    parsed_args: argparse.Namespace,
    image_id: str,
    what: str,
    body: Mapping[str, object],
) -> Any:
    """Send hosts a task for an image; return the columns and rows of their progress.

    :raises exceptions.CommandError: a host failed, did not receive the task, or is too slow
    """
    sent = _SentTask(client.client_of(running), image_id, what, body)
    known: Mapping[str, dict[str, Any]] = {}
    if parsed_args.wait:
        if sent.hosts:
            client.wait_until_done(
                f"{what} {image_id}",
                sent.progress,
                parsed_args.timeout,
                f"openstack acstor image host list {image_id}",
            )
        known = sent.reports()
        sent.check_failures(known)
    return ["Host", "Task"], [[host, task_text(known.get(host))] for host in sent.hosts]


class _SentTask:
    def __init__(
        self, api: client.Client, image_id: str, what: str, body: Mapping[str, object]
    ) -> None:
        self._api, self._image_id, self._what = api, image_id, what
        answer = api.post(f"/v1/images/{image_id}/{what}", body)
        self.hosts: list[str] = answer["hosts"]
        self._request = answer["request"]
        self._received_by_s = time.monotonic() + RECEIVED_WITHIN_S

    def reports(self) -> dict[str, dict[str, Any]]:
        found = self._api.get(f"/v1/images/{self._image_id}/hosts")["hosts"]
        return {
            host["host"]: host["task"]
            for host in found
            if host["task"] and host["task"]["request"] == self._request
        }

    def progress(self) -> tuple[int, int]:
        known = self.reports()
        silent = [host for host in self.hosts if host not in known]
        if silent and time.monotonic() > self._received_by_s:
            raise exceptions.CommandError(
                f"{self._what} {self._image_id}: {len(silent)} of {len(self.hosts)} hosts did not "
                f"receive it ({', '.join(silent[:5])}): they were cut off from the message bus, or "
                "got another task meanwhile. Repeat the command"
            )
        return sum(map(_percent, known.values())), 100 * len(self.hosts)

    def check_failures(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        failed = {
            host: output_columns.text(task["why"])
            for host, task in known.items()
            if task["state"] == "failed"
        }
        if failed:
            shown = "; ".join(f"{host}: {why}" for host, why in sorted(failed.items())[:5])
            raise exceptions.CommandError(
                f"{self._what} failed on {len(failed)} of {len(self.hosts)} hosts: {shown}"
            )


def _percent(task: Mapping[str, Any]) -> int:
    if task["state"] in ("done", "failed"):
        return 100
    return min(99, 100 * task["done"] // task["total"]) if task["total"] else 0


def task_text(task: Mapping[str, Any] | None) -> str:
    """Return the kind, the state and the progress of a host's task."""
    if not task:
        return ""
    text = f"{task['kind']}: {task['state']}"
    if task["why"]:
        return f"{text}, {output_columns.text(task['why'])}"
    return text if task["kind"] in INSTANT else f"{text}, {_percent(task)} %"
