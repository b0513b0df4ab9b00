# SPDX-License-Identifier: Apache-2.0
"""``acstor-glance-manage``: prepares images, manages their artefacts.

Prints results to standard output (``--json``: one object per line), all else to standard error.
Exit status: 0 success, 1 failure, 2 wrong usage, 3 an image is faulty, could not be prepared or can
be deleted too early, 130 interrupted.
"""

import argparse
import contextlib
import datetime
import functools
import json
import logging
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tqdm
from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.service import argument_types
from acstor_common.service import conf as common_conf
from acstor_common.service import log_format
from acstor_common.util import printable_text
from acstor_glance import conf as glance_conf
from acstor_glance import deletion_protection
from acstor_glance.client import glance_client
from acstor_glance.client import image_iteration
from acstor_glance.client import range_support
from acstor_glance.cmd import command_line
from acstor_glance.controller import artefact_verifier
from acstor_glance.controller import image_export
from acstor_glance.controller import image_reconciler
from acstor_glance.controller import image_scan
from acstor_glance.controller import protection_check
from acstor_glance.prepare import image_preparer
from acstor_glance.prepare import plan

PROG = "acstor-glance-manage"
EXIT_FAULTY = 3
CONF_FILE = "/etc/acstor/acstor-glance.conf"

BAD_OUTCOMES = frozenset(
    {image_preparer.PreparationOutcome.FAILED, image_preparer.PreparationOutcome.GONE}
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = make_parser().parse_args(argv)
    level = logging.INFO if options.verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    log_format.install()

    def run() -> int:
        return int(options.run(Tool(load_conf(options.config_file), options)))

    return command_line.run_command(PROG, run, "stopped; completed work is kept", cfg.Error)


def load_conf(path: str) -> cfg.ConfigOpts:
    """Return the configuration in the file ``path``; raises cfg.Error."""
    conf = cfg.ConfigOpts()
    glance_conf.load(conf, ["--config-file", path], PROG, common_conf.read)
    return conf


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=PROG, description="Prepare Glance's images for acstor, and manage their artefacts."
    )
    parser.add_argument(
        "--config-file", metavar="FILE", default=CONF_FILE, help=f"default: {CONF_FILE}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--quiet", action="store_true", help="show no progress bars")
    parser.add_argument("--verbose", action="store_true", help="log each step")
    _add_commands(parser.add_subparsers(metavar="COMMAND", required=True))
    return parser


def _add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    prepare = commands.add_parser("prepare", help="make the chunk maps of images now")
    prepare.set_defaults(run=Tool.prepare)
    prepare.add_argument("--force", action="store_true", help="even if they exist")
    commands.add_parser(
        "reconcile", help="prepare all images that need it; delete orphaned artefacts"
    ).set_defaults(run=Tool.reconcile)
    listing = commands.add_parser("list", help="show images, their states and artefacts")
    listing.set_defaults(run=Tool.show)
    verify = commands.add_parser("verify", help="check the artefacts and their data")
    verify.set_defaults(run=Tool.verify)
    verify.add_argument("--bytes", action="store_true", help="also read the images and compare")
    verify.add_argument("--repair", action="store_true", help="recreate or delete faulty artefacts")
    export = commands.add_parser(
        "export", help="copy images into a folder, for stores that agents cannot read"
    )
    export.set_defaults(run=Tool.export)
    export.add_argument(
        "--folder", metavar="DIR", type=pathlib.Path, required=True, help="existing folder"
    )
    purge = commands.add_parser("purge", help="remove artefacts and properties from Glance")
    purge.set_defaults(run=Tool.purge)
    purge.add_argument("--yes", action="store_true", help="delete; without it only list")
    commands.add_parser(
        "check",
        help="show images in use that can be deleted, and count unsupported images by reason",
    ).set_defaults(run=Tool.check)
    for command in (prepare, listing, verify, export, purge):
        _add_images(command)


def _add_images(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "images",
        metavar="IMAGE",
        nargs="*",
        type=argument_types.argument_type(ids.parse_image_id),
        help="default: all images",
    )


class Tool:
    """The subcommands; each returns an exit status."""

    def __init__(self, conf: cfg.ConfigOpts, options: argparse.Namespace) -> None:
        self._conf, self._options = conf, options
        self._images = glance_client.connect(conf)

    @functools.cached_property
    def _preparer(self) -> image_preparer.ImagePreparer:
        return image_preparer.ImagePreparer(self._images, self._conf)

    def prepare(self) -> int:
        """Make the chunk maps of the named images, or of all that need one."""
        is_forced = self._options.force
        if self._options.images or is_forced:
            return self._prepare(
                [image.id for image in self._selected_images()], is_forced=is_forced
            )
        return self._prepare(self._images_to_prepare())

    def _images_to_prepare(self) -> list[ids.ImageId]:
        now, project_id = datetime.datetime.now(datetime.UTC), self._images.project_id
        found = []
        with self._steps("checked", None) as step:
            for image, image_map in image_iteration.iterate_images(self._images):
                others = self._images.read_converted(image)
                known = {part.id: part for part in (image_map, others) if part}
                todo = plan.plan_image(image, known.get, project_id, self._preparer.desired, now)
                if todo.step is not plan.Step.NOTHING:
                    found.append(image.id)
                step()
        return found

    def reconcile(self) -> int:
        """Run one reconciliation, as the listener does regularly."""
        wanted = self._preparer.desired
        findings = image_reconciler.ImageReconciler(
            self._images, wanted, builds_boot_images=False
        ).run()
        for artefact_id in findings.deleted:
            self._print_result({"artefact": artefact_id, "outcome": "deleted"})
        return self._prepare(list(findings.to_prepare))

    def show(self) -> int:
        """Show every selected image, with its states and artefacts."""
        for image in self._selected_images():
            state, boot_state = artefacts.state_of(image), artefacts.boot_state_of(image)
            self._print_result(
                {
                    "image": image.id,
                    "name": image.name,
                    "state": state.value if state else "none",
                    **{k.value: artefacts.pointer_of(image, k) for k in artefacts.Kind},
                    "message": image.text(artefacts.MESSAGE) if state else "",
                    "boot_state": boot_state.value if boot_state else "",
                    "boot_message": image.text(artefacts.BOOT_MESSAGE) if boot_state else "",
                    **self._scope_facts(image),
                }
            )
        return 0

    def _scope_facts(self, image: image_record.Image) -> dict[str, str]:
        image_map = self._images.artefact_of(image, artefacts.Kind.CHUNK_MAP)
        if image_map is None:
            return {"scope": "", "scope_due": ""}
        named_in = image_map.text(artefacts.SCOPE)
        due = deduplication.scope_of(
            image, deduplication.DedupScope(self._conf.acstor_glance.dedup_scope)
        )
        return {"scope": named_in, "scope_due": "" if named_in == due else due.value}

    def verify(self) -> int:
        """Check the artefacts of the selection; with --repair replace the faulty ones."""
        faulty, bad_boot_images = [], {}
        for image in self._selected_images():
            with self._bar(image.id, image.size_bytes) as progress:
                verdict = artefact_verifier.verify_image(
                    self._images, image, is_thorough=self._options.bytes, progress=progress
                )
            self._print_result(
                {"image": verdict.image_id, "state": verdict.state, "fault": verdict.fault}
            )
            if verdict.bad_boot_image:
                bad_boot_images[verdict.image_id] = verdict.bad_boot_image
            elif verdict.fault:
                faulty.append(verdict.image_id)
        if not self._options.repair:
            return EXIT_FAULTY if faulty or bad_boot_images else 0
        for image_id, artefact_id in bad_boot_images.items():
            self._drop_boot_image(image_id, artefact_id)
        return self._prepare(faulty, is_forced=True)

    def _drop_boot_image(self, image_id: str, artefact_id: str) -> None:
        self._images.set_properties(image_id, {artefacts.Kind.BOOT_IMAGE.pointer: ""})
        self._images.delete_artefact(artefact_id)
        self._print_result({"artefact": artefact_id, "outcome": "deleted"})

    def export(self) -> int:
        """Copy the selection into a folder; without one, also remove unserved images."""
        folder: pathlib.Path = self._options.folder
        served: set[str] = set()
        is_whole = True
        for image in self._selected_images():
            try:
                with self._bar(image.id, image.size_bytes) as progress:
                    outcome = image_export.export(self._images, image, folder, progress)
                if outcome is not image_export.ExportOutcome.UNPREPARED:
                    served.add(image.id)
                self._print_result({"image": image.id, "outcome": outcome.value})
            except (errors.Unusable, errors.FormatError, errors.ImageGone, OSError) as exc:
                is_whole = False
                self._print_result({"image": image.id, "outcome": "failed", "message": str(exc)})
        if not self._options.images and is_whole:
            for image_id in image_export.remove_unserved(folder, served):
                self._print_result({"image": image_id, "outcome": "removed"})
        return 0 if is_whole else EXIT_FAULTY

    def check(self) -> int:
        """Report needed images that can be deleted, and images that are not served."""
        is_healthy = True
        for finding in protection_check.check_protection(self._conf, self._images):
            outcome = "ok" if finding.is_healthy else "not guaranteed"
            self._print_result(
                {"check": finding.subject, "outcome": outcome, "message": finding.message}
            )
            is_healthy = is_healthy and finding.is_healthy
        return 0 if self._count() and is_healthy else EXIT_FAULTY

    def _count(self) -> bool:
        counting = image_scan.ImageScan(
            self._images,
            range_support.RangeProber(self._conf).has_ranges,
            self._conf.acstor_glance.convert_formats,
        )
        with self._steps("images", None) as step:
            for _number in counting.run():
                step()
        for label, count in sorted(counting.counts.items(), key=lambda entry: -entry[1].images):
            facts: dict[str, Any] = {"reason": label, "images": count.images}
            if count.reason is not image_scan.ScanReason.SERVED:
                facts |= {"examples": count.examples, "message": count.message}
            self._print_result(facts)
        return counting.is_healthy

    def purge(self) -> int:
        """Delete artefacts, then acstor's properties and tags, of the selection."""
        named = set(self._options.images)
        for artefact in list(self._images.list_artefacts()):
            if not named or artefact.text(artefacts.OF_IMAGE) in named:
                self._purge({"artefact": artefact.id}, self._images.delete_artefact, artefact.id)
        names = dict.fromkeys(artefacts.IMAGE_PROPERTIES, "")
        project_id = self._images.project_id
        for image in self._selected_images():
            if deletion_protection.tags_without_marks(image, project_id) != list(image.tags):
                of_image = {"protection": image.id}
                self._purge(of_image, self._remove_protection, image.id, project_id)
            if names.keys() & image.properties.keys():
                self._purge({"image": image.id}, self._images.set_properties, image.id, names)
        if not self._options.yes:
            print(f"{PROG}: nothing was removed; add --yes to remove", file=sys.stderr)
        return 0

    def _remove_protection(self, image_id: str, project_id: str) -> None:
        image = self._images.get_image(image_id)
        is_ours = (
            deletion_protection.protection_of(image, project_id)
            is deletion_protection.ProtectionStatus.OURS
        )
        tags = deletion_protection.tags_without_marks(image, project_id)
        self._images.set_protection(image, tags, False if is_ours else None)

    def _purge(self, what: dict[str, Any], remove: Callable[..., object], *arguments: Any) -> None:
        if self._options.yes:
            with contextlib.suppress(errors.ImageGone):
                remove(*arguments)
        self._print_result(
            {**what, "outcome": "removed" if self._options.yes else "would be removed"}
        )

    def _prepare(self, image_ids: Sequence[str], *, is_forced: bool = False) -> int:
        outcomes = set()
        with self._steps("images", len(image_ids)) as step:
            for image_id in image_ids:
                known = self._images.read_or_none(image_id) if self._shows_progress else None
                with self._bar(image_id, known.size_bytes if known else 0) as progress:
                    outcome = self._preparer.prepare_image(
                        ids.parse_image_id(image_id), is_forced=is_forced, progress=progress
                    )
                self._print_result({"image": image_id, "outcome": outcome.value})
                outcomes.add(outcome)
                step()
        return EXIT_FAULTY if outcomes & BAD_OUTCOMES else 0

    def _selected_images(self) -> Iterator[image_record.Image]:
        if getattr(self._options, "images", None):
            yield from map(self._images.get_image, self._options.images)
            return
        project_id = self._images.project_id
        for image in self._images.list_images():
            if not artefacts.is_excluded(image, project_id):
                yield image

    def _bar(
        self, image_id: str, size_bytes: int
    ) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        return command_line.byte_bar(image_id, size_bytes, is_shown=self._shows_progress)

    @contextlib.contextmanager
    def _steps(self, what: str, total: int | None) -> Iterator[Callable[[], object]]:
        with tqdm.tqdm(
            desc=what, total=total, unit=" images", disable=not self._shows_progress, leave=False
        ) as bar:
            yield bar.update

    @property
    def _shows_progress(self) -> bool:
        return sys.stderr.isatty() and not self._options.quiet

    def _print_result(self, facts: dict[str, Any]) -> None:
        shown = {name: ", ".join(value) if isinstance(value, list) else value
                 for name, value in printable_text.data(facts).items()}  # fmt: skip
        words = "  ".join(f"{name} {value}" for name, value in shown.items() if value)
        with tqdm.tqdm.external_write_mode():
            print(json.dumps(facts) if self._options.json else words, flush=True)


if __name__ == "__main__":
    sys.exit(main())
