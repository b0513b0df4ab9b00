# SPDX-License-Identifier: Apache-2.0
"""The check of a compute host reports its images, with a real agent and without Nova."""

from acstor_common.model import geometry
from tests.fakes import compute_host
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]
MIB = geometry.MIB
SOON_S = 120.0
OPTIONS = {"constants": {tuned.BOOT_IDLE_S: 1.0}, "life_s": 400.0}
SMALL, LARGE = 20 * MIB, 64 * MIB


def check(nova: compute_host.Compute) -> dict[str, dict[str, str]]:
    """Return the findings of the check; the agent itself is healthy."""
    found = nova.check()
    assert found["agent"]["level"] == found["mirror"]["level"] == "ok", found
    return found


def wait_for(agent: agents.Agent, state: str, *image_ids: str) -> None:
    def is_so() -> bool:
        shown = agent.status()["images"]
        return all((shown[one]["fill"] or {}).get("state") == state for one in image_ids)

    hosts.wait_until(is_so, f"images that are {state}", SOON_S)


def test_check_names_images_that_do_not_fit_before_and_after_their_use(images, tmp_path):
    first, second = (images.add(local.random_bytes(12 * MIB, seed)) for seed in (1, 2))

    def agent(**options):
        return hosts.running(tmp_path / "h1", images, **OPTIONS, **options)

    with agent(keep_images="none", cache_limit_bytes=SMALL) as running:
        nova = compute_host.Compute(tmp_path / "nova", running)
        for image_id in (first, second):
            running.ctl("attach", image_id)
            nova.make_instance(image_id)
        found = check(nova)["keep_images"]
        assert found["level"] == "warning"
        assert "2 instances of this host always depend" in found["detail"]

    with agent(keep_images="host", cache_limit_bytes=SMALL) as running:
        nova = compute_host.Compute(tmp_path / "nova", running)
        found = check(nova)
        assert found["keep_images"]["level"] == "ok"
        assert found["space for images"]["level"] == "warning"  # though no use was seen yet
        before = "1 images of instances are not pinned yet, at most 12 MiB; there will be no space"
        assert before in found["space for images"]["detail"]
        running.ctl("attach", first)
        running.ctl("attach", second)
        wait_for(running, "no_space", first)  # the other one was touched later
        assert f"{first} lacks" in check(nova)["space for images"]["detail"]

    with agent(keep_images="host", cache_limit_bytes=LARGE) as running:
        nova = compute_host.Compute(tmp_path / "nova", running)
        for image_id in (first, second):
            running.ctl("attach", image_id)
        wait_for(running, "fully_cached", first, second)
        found = check(nova)
        about = (
            "keep_images",
            "space for images",
            "cached images",
            "[image_cache] manager_interval",
        )
        assert {found[what]["level"] for what in about} == {"ok"}
        assert found["cached images"]["detail"] == "all 2 images of instances"
        assert "failing images" not in found
