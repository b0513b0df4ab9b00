# SPDX-License-Identifier: Apache-2.0
"""Beyond S0: hosts that are dead, frozen or lying, and TLS; measured, small."""

import functools
import statistics
from collections.abc import Sequence

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import p11_bad_peer
from evaluation.bench import patterns
from evaluation.papers import experiment
from tests.lab import local

HEALTHY, HEALTHY_AGAIN = "healthy", "healthy again"
BAD = ("frozen", "lying", "dead")
REGION_BYTES = 16 * geometry.MIB
LINK_MBIT = 25.0
TLS_HOSTS, TLS_MBIT, TLS_BYTES = 4, 100.0, 48 * geometry.MIB
SECURITY = ("secure", "insecure")


def run_peer(state: str, say: harness.Say) -> experiment.Outcome:
    """Let two hosts read beside a third one in a state of health."""
    deed = p11_bad_peer.STATES.get(state)
    with collective.images(local.random_bytes(REGION_BYTES, seed=1)) as images:
        found = p11_bad_peer.watch(images, deed, False, state == "lying", REGION_BYTES, LINK_MBIT)
    outcome = {
        "took_s": round(max(found["took_s"], default=0.0), 3),
        "fault": found["fault"],
        "invalid_chunks": sum(one["invalid_chunks"] for one in found["exchange"]),
        "source_ratio": round(found["source_ratio"], 4),
    }
    say(f"{state}: {outcome}")
    return outcome


def run_security(security: str, say: harness.Say) -> experiment.Outcome:
    """Run Sync-Same in a mode of ``peer_security``."""
    pattern = patterns.sync_same(TLS_HOSTS, TLS_MBIT, TLS_BYTES, TLS_BYTES)
    found = patterns.with_acstor(pattern, security=security)
    say(f"{security}: {patterns.words(found)}")
    return {"completion": round(found["completion"], 4), "cpu_s": round(found["cpu_s"], 2)}


def cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases; the healthy cloud is at both ends."""
    if scale is experiment.Scale.QUICK:
        states: tuple[str, ...] = (HEALTHY, "lying")
        return [_peer_case(state) for state in states]
    found = [_peer_case(state) for state in (HEALTHY, *BAD, HEALTHY_AGAIN)]
    return found + [
        experiment.Case(mode, functools.partial(run_security, mode), 16) for mode in SECURITY
    ]


def _peer_case(state: str) -> experiment.Case:
    return experiment.Case(state, functools.partial(run_peer, state), 14)


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    """Return the cost of a bad host of three, of TLS, and that no bytes were wrong."""
    healthy = [outcomes[one]["took_s"] for one in (HEALTHY, HEALTHY_AGAIN) if one in outcomes]
    found = []
    for state in BAD:
        ours = outcomes.get(state)
        if ours is None or not healthy:
            continue
        healthy_s = statistics.mean(healthy)
        words = f"; {ours['invalid_chunks']} wrong chunks were detected" if state == "lying" else ""
        found.append(
            experiment.Row(
                "Beyond",
                f"one host of three is {state}: time of the other two, which read no wrong "
                f"byte{words}",
                "",
                ours["took_s"] if not ours["fault"] else None,
                "s",
                healthy_s,
                "all healthy",
                ours["took_s"] / healthy_s,
                better=experiment.Better.LESS,
            )
        )
    secure, insecure = (outcomes.get(mode) for mode in SECURITY)
    if secure and insecure:
        found.append(
            experiment.Row.cost(
                "Beyond",
                f"TLS between all hosts: processor time of the reads of {TLS_HOSTS} hosts, against "
                "clear text",
                "",
                secure["cpu_s"],
                "s",
                insecure["cpu_s"],
                "clear text",
            )
        )
        found.append(
            experiment.Row.cost(
                "Beyond",
                "the same: completion",
                "",
                secure["completion"],
                "of the limit",
                insecure["completion"],
                "clear text",
            )
        )
    return found


def pairs(outcomes: experiment.Outcomes) -> dict[str, list[float]]:
    """Return the healthy cloud at both ends of the run."""
    times = [outcomes[one]["took_s"] for one in (HEALTHY, HEALTHY_AGAIN) if one in outcomes]
    return {HEALTHY: times} if len(times) > 1 else {}


EXPERIMENT = experiment.Experiment(
    key="S0-beyond",
    title="Failing or lying hosts, and TLS",
    paper_has="",
    here=(
        "Nicolae's mirrors trust each other and communicate in clear text. Here each chunk is "
        "verified against the hash in the image's chunk map, whichever host sent it, and hosts "
        f"authenticate each other. Three hosts have links of {LINK_MBIT:g} Mbit/s; two of them "
        f"read {REGION_BYTES >> 20} MiB, and the third is their home for a third of it: it is "
        f"frozen, sends wrong bytes, or is dead. Also Sync-Same of {TLS_HOSTS} hosts at "
        f"{TLS_MBIT:g} Mbit/s with TLS and without. The page of S3 covers the exchange of chunks "
        "that different images have in common."
    ),
    cases=cases,
    rows=rows,
    pairs=pairs,
    is_beyond=True,
)
