# SPDX-License-Identifier: Apache-2.0
"""acstor's exchange by content beyond the paper, or in its future work."""

import functools
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common.model import geometry
from acstor_common.wire.peer import peer_wire
from evaluation.bench import d1_scope
from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s3_scenes as scenes
from tests.fakes import announced

FOUR, LATE, SMALL_CHUNKS = "four repositories", "one group later", "chunks of 32 KiB"
NEWS, SCOPE = "advertisements", "scopes"
LATE_S = 10.0
PAPER_NEWS_BYTES = 20
PREFIXES = (1, 16, 128)


def cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return the cases."""
    half = (2, 2)
    later = functools.partial(scenes.compare, half, delays_s=(0.0, LATE_S))
    small = functools.partial(
        scenes.compare, half, ways=(scenes.CONTENT,), chunk_bytes=32 * geometry.KIB
    )
    normal = functools.partial(scenes.compare, half, ways=(scenes.CONTENT,))
    longer = [
        experiment.Case(LATE, later, 35),
        experiment.Case("chunks of 64 KiB", normal, 10),
        experiment.Case(SMALL_CHUNKS, small, 10),
    ]
    return [
        experiment.Case(FOUR, functools.partial(scenes.compare, (1, 1, 1, 1)), 30),
        *(longer if scale == experiment.Scale.WHOLE else []),
        experiment.Case(NEWS, news, 1, is_timed=False),
        experiment.Case(SCOPE, scope, 20, is_timed=False),
    ]


def news(say: harness.Say) -> experiment.Outcome:
    """Measure the wire size of an advertisement, by its number of chunks."""
    found = {}
    for count in PREFIXES:
        frame = peer_wire.encode(peer_wire.Advertise(announced.alone(*range(1, count + 1))))
        found[str(count)] = sum(len(part) for part in frame) / count
    say(f"bytes for each chunk, by chunks in a message: {found}")
    return {"bytes_per_chunk": found}


def scope(say: harness.Say) -> experiment.Outcome:
    """Measure the cost of sharing within a project, compared with sharing among all."""
    return {**d1_scope.run(say).details}


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    """Return the rows of the cases with an outcome."""
    return [
        *_group_rows(outcomes),
        *_chunk_rows(outcomes),
        *_news_rows(outcomes.get(NEWS)),
        *_scope_rows(outcomes.get(SCOPE)),
    ]


def _group_rows(outcomes: experiment.Outcomes) -> Iterator[experiment.Row]:
    for name, what, paper in (
        (FOUR, "hosts at four repositories, equally many at each", "two repositories"),
        (LATE, f"hosts, half of them at Repo-2 and {LATE_S:g} s later", "future work (V)"),
    ):
        if (ways := outcomes.get(name)) is None:
            continue
        apart, together = ways[scenes.SIMPLE], ways[scenes.CONTENT]
        for key, unit, of in (
            ("mean_s", "s", "mean completion"),
            ("source_ratio", "packages", "data read from the source"),
        ):
            yield experiment.Row(
                "beyond",
                f"{together['hosts']} {what}: {of}, content; ratio: simple over content",
                paper,
                together[key],
                unit,
                apart[key],
                scenes.SIMPLE,
                round(apart[key] / together[key], 3),
            )
    if (ways := outcomes.get(LATE)) is not None:
        found = ways[scenes.CONTENT]
        yield experiment.Row(
            "beyond",
            "the same, content: mean completion of the late hosts",
            "future work (V)",
            found["mean_s_2"],
            "s",
            found["mean_s_1"],
            "the early hosts",
            round(found["mean_s_2"] / found["mean_s_1"], 3),
        )


def _chunk_rows(outcomes: experiment.Outcomes) -> Iterator[experiment.Row]:
    small, normal = outcomes.get(SMALL_CHUNKS), outcomes.get("chunks of 64 KiB")
    if small is None or normal is None:
        return
    ours, beside = (ways[scenes.CONTENT]["mean_s"] for ways in (small, normal))
    yield experiment.Row(
        "beyond",
        f"{small[scenes.CONTENT]['hosts']} hosts, half at each repository, content: mean "
        "completion with the paper's chunks of 32 KiB",
        "32 KiB alone",
        ours,
        "s",
        beside,
        "64 KiB",
        round(ours / beside, 3),
    )


def _news_rows(found: experiment.Outcome | None) -> Iterator[experiment.Row]:
    by_count = found["bytes_per_chunk"] if found else {}
    for count, length in sorted(by_count.items(), key=lambda item: int(item[0])):
        yield experiment.Row(
            "3.A.3",
            f"bytes of an advertisement for each chunk, {count} in a message, frame included",
            f"{PAPER_NEWS_BYTES} bytes of SHA-1, without its packet",
            round(length, 2),
            "bytes",
            PAPER_NEWS_BYTES,
            "a SHA-1",
            round(length / PAPER_NEWS_BYTES, 3),
        )


def _scope_rows(found: experiment.Outcome | None) -> Iterator[experiment.Row]:
    if found is None:
        return
    inside, cloud = (found["source_bytes"][name] / geometry.MIB for name in ("project", "cloud"))
    yield experiment.Row(
        "beyond",
        "snapshots of one public image by two projects, read after it: bytes from the source if "
        "projects share only public images (``dedup_scope = project``, benchmark D1)",
        "all share all",
        round(inside, 2),
        "MiB",
        round(cloud, 2),
        "all share all",
        round(inside / cloud, 3),
    )


EXPERIMENTS = (
    experiment.Experiment(
        key="S3-beyond",
        title="More repositories, groups at different times, smaller names, and limits of sharing",
        paper_has="",
        here=(
            "The lab of figure 2 with 4 hosts (less of it in a quick run). Each chunk from a peer "
            "is hashed and compared with the chunk map before it is used (the paper's hosts never "
            "hash), so the figures above include that: a host that lies costs time and no bytes "
            "(benchmark P11). An advertisement has the first 8 bytes of a hash: if two contents "
            "of one image had the same ones, the second would not be prefetched, with no other "
            "effect."
        ),
        cases=cases,
        rows=rows,
        is_beyond=True,
    ),
)
