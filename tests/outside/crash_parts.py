# SPDX-License-Identifier: Apache-2.0
"""The parts that kill: fsx and fio on writable disks, and both on overlays over the mirror."""

from tests.outside import crash_host
from tests.outside import crash_passes
from tests.outside import fio
from tests.outside import fsx

Fault = crash_host.Fault


def run_fsx(goal: crash_passes.Goal) -> crash_passes.Tally:
    """Run fsx on writable disks."""

    def work(now: crash_passes.Pass) -> crash_passes.Work:
        disk = crash_host.AgentDisk(now.host)
        done = fsx.run_on(disk.path, now, goal)
        disk.drop()
        return done

    return crash_passes.run_part(work, goal, crash_host.SURVIVED)


def run_fio(goal: crash_passes.Goal) -> crash_passes.Tally:
    """Run fio on writable disks of a host that loses power, too."""

    def work(now: crash_passes.Pass) -> crash_passes.Work:
        disk = crash_host.AgentDisk(now.host)
        done = fio.run_on(disk.path, now)
        disk.drop()
        return done

    faults = Fault.WORKER, Fault.SUPERVISOR, Fault.POWER
    return crash_passes.run_part(work, goal, faults, "ext4")


def run_overlay(goal: crash_passes.Goal) -> crash_passes.Tally:
    """Run fsx and fio in turns on overlays, as those of guests, over the mirror."""

    def work(now: crash_passes.Pass) -> crash_passes.Work:
        disk = crash_host.OverlayDisk(now.host)
        is_survived = now.fault is None or now.fault in crash_host.SURVIVED
        by_fsx = is_survived and now.number % 2 == 0
        done = fsx.run_on(disk.path, now, goal) if by_fsx else fio.run_on(disk.path, now)
        disk.drop()
        return done

    return crash_passes.run_part(work, goal, tuple(Fault), "xfs")
