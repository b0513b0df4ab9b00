# SPDX-License-Identifier: Apache-2.0
"""P12d: P12 over the rate of the link to Glance.

One cloud and one image, a compressed qcow2 as in P12, with a chunk map and a boot image.  At each
rate both compute hosts are cold: acstor's agent starts with an empty cache, and Nova's image cache
is emptied.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping

from matplotlib import figure

from acstor_common import errors
from evaluation.bench import harness
from evaluation.bench import nova_pair
from evaluation.bench import p12_nova
from tests.fakes import nova_hosts
from tests.lab import guest_image
from tests.lab import runs

LINKS_MBIT = (100.0, 250.0, 1000.0)
LABELS = {"stock": "stock Nova", "acstor": "acstor"}

Boots = Mapping[float, Mapping[str, p12_nova.Boot]]


@harness.measures("P12d")
def run(say: harness.Say) -> harness.Result:
    """Boot the same disk on both hosts, at each rate."""
    nova_pair.check()
    guest = guest_image.ensure(say)
    found: dict[float, dict[str, p12_nova.Boot]] = {}
    image_id = ""
    with runs.Run() as folders, contextlib.ExitStack() as stack:
        disk = p12_nova.make_disk(guest, folders.folder, say)
        lab = stack.enter_context(nova_pair.started(folders.folder / "openstack"))
        for mbit in LINKS_MBIT:
            with p12_nova.hosts_behind(lab, mbit) as place:
                image_id = image_id or add_image(place.both, disk)
                found[mbit] = boot_both(place, image_id)
            took = ", ".join(f"{way} {one.login_s:.1f} s" for way, one in found[mbit].items())
            say(f"{mbit:g} Mbit/s: login after: {took}")
    ratios = tuple(boots["stock"].login_s / boots["acstor"].login_s for boots in found.values())
    details = {
        "data_mib": p12_nova.DATA_MIB,
        "qcow2_bytes": disk.qcow2_bytes,
        "boots": {
            f"{mbit:g}": {way: dataclasses.asdict(one) for way, one in boots.items()}
            for mbit, boots in found.items()
        },
    }
    return harness.Result({"P12d": ratios}, details, functools.partial(draw, found=found))


def add_image(both: nova_hosts.NovaHosts, disk: p12_nova.Disk) -> str:
    """Upload the disk, with a chunk map and a boot image; return the image's ID."""
    with disk.qcow2.open("rb") as data:
        image_id = both.images.add(data, "qcow2")
    both.images.map(image_id)
    both.images.build_boot_image(image_id)
    return image_id


def boot_both(place: p12_nova.Place, image_id: str) -> dict[str, p12_nova.Boot]:
    """Boot a server on each host, both of which are cold."""
    own, stock = place.both.hosts
    for base in (stock.compute.instances / "_base").glob("*"):
        base.unlink()
    boots = {
        "stock": p12_nova.boot(place, stock, image_id, downloads=1),
        "acstor": p12_nova.boot(place, own, image_id, downloads=0),
    }
    if not own.is_mirrored(image_id) or own.fallbacks():
        raise errors.Unusable("P12d", "acstor was not used")
    return boots


def draw(picture: figure.Figure, found: Boots) -> None:
    """Draw the seconds until the login prompt over the rate."""
    panel = picture.subplots()
    rates = list(found)
    for way, label in LABELS.items():
        seconds = [found[mbit][way].login_s for mbit in rates]
        panel.plot(rates, seconds, marker="o", label=label)
    panel.set(
        title="Request to login prompt, cold host",
        xlabel="link to Glance, Mbit/s",
        ylabel="s",
        xscale="log",
        yscale="log",
        xticks=rates,
        xticklabels=[f"{mbit:g}" for mbit in rates],
    )
    panel.minorticks_off()
    panel.legend()
