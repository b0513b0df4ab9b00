# SPDX-License-Identifier: Apache-2.0
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_decision.core.membership import address_book
from acstor_decision.core.membership import members

R = members.Refusal
WALL_S = 1_000_000.0
LINK_BYTES_S = 1000
COLLECTION_S = 5.0
H1, H2, H3 = (ids.HostId(f"h{n}") for n in (1, 2, 3))


def sample(host: str = "h1", number: int = 1, **fields: Any) -> decision_messages.Sample:
    own = {
        "host": host,
        "address": f"10.0.0.{host[1:]}:7201",
        "session": 7,
        "started_s": WALL_S - 100,
        "number": number,
        "sent_s": WALL_S + number * COLLECTION_S,
        "interval_s": COLLECTION_S,
        "link_bytes_s": LINK_BYTES_S,
        "total": decision_messages.TrafficBytes(0, 0),
    }
    return decision_messages.Sample(**own | fields)


def busy(share: float, own: float = 0.0) -> dict[str, decision_messages.TrafficBytes]:
    whole = LINK_BYTES_S * COLLECTION_S
    return {
        "total": decision_messages.TrafficBytes(0, int(share * whole)),
        "chunks": decision_messages.TrafficBytes(0, int(own * whole)),
    }


class Cloud:
    """Members that receive samples; the clock advances by collection intervals."""

    def __init__(self, **limits: Any) -> None:
        self.members = members.Members(
            members.MembershipLimits(collection_s=COLLECTION_S, **limits)
        )
        self.round = 0

    @property
    def now_s(self) -> float:
        return self.round * COLLECTION_S

    def accept(self, made: decision_messages.Sample) -> members.Refusal | None:
        return self.members.accept_sample(made, self.now_s, WALL_S + self.now_s)

    def collect(self, *hosts: str, times: int = 1, **fields: Any) -> None:
        for _ in range(times):
            self.round += 1
            for host in hosts:
                assert self.accept(sample(host, self.round, **fields)) is None

    def living(self) -> list[ids.HostId]:
        return self.members.list_live(self.now_s)

    def overloaded(self) -> list[ids.HostId]:
        return self.members.list_overloaded(self.now_s)


def test_host_joins_with_its_second_sample_and_leaves_when_silent():
    cloud = Cloud(dead_after_samples=3)
    cloud.collect("h1", "h2", "h3")
    assert cloud.living() == []
    cloud.collect("h1", "h2", "h3")
    assert cloud.living() == [H1, H2, H3]
    cloud.collect("h1", "h2", times=3)
    assert cloud.living() == [H1, H2, H3]
    cloud.collect("h1", "h2")
    assert cloud.living() == [H1, H2]
    cloud.members.forget_dead(cloud.now_s)
    assert H3 not in cloud.members
    cloud.collect("h1", "h2", "h3")
    assert cloud.living() == [H1, H2]
    cloud.collect("h1", "h2", "h3")
    assert cloud.living() == [H1, H2, H3]


def test_members_stay_when_most_fall_silent_at_once():
    cloud = Cloud(dead_after_samples=2)
    cloud.collect("h1", "h2", "h3", times=2)
    cloud.collect("h1", times=9)
    assert cloud.living() == [H1, H2, H3]
    cloud.round += 100
    assert cloud.living() == [H1, H2, H3]


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"number": 2}, R.DOUBLED),
        ({"number": 1}, R.OUT_OF_ORDER),
        ({"number": 3, "sent_s": WALL_S + 1000}, R.FUTURE),
        ({"number": 3, "sent_s": WALL_S - 1000}, R.LATE),
        ({"session": 8, "started_s": WALL_S - 200}, R.OLD_SESSION),
        ({"session": 8}, R.OLD_SESSION),
        ({"session": 8, "started_s": WALL_S + 1000}, R.FUTURE),
        ({"number": 3, "address": "10.0.0.2:7201"}, R.TAKEN_ADDRESS),
        ({"host": "stranger"}, R.NOT_ALLOWED),
    ],
)
def test_implausible_sample_is_refused_and_counted(fields, refusal):
    cloud = Cloud(allowed=("h*",))
    cloud.collect("h1", "h2", times=2)
    before = vars(cloud.members[H1]).copy()
    assert cloud.accept(sample(**{"number": 2, "address": "10.0.0.1:7201"} | fields)) is refusal
    assert cloud.members.refused[refusal] == 1
    assert vars(cloud.members[H1]) == before
    assert cloud.members.list_hosts() == [H1, H2]


def test_restarted_agent_is_accepted_at_once():
    cloud = Cloud()
    cloud.collect("h1", times=5)
    assert (
        cloud.accept(sample(session=8, started_s=WALL_S + 1, sent_s=cloud.now_s + WALL_S)) is None
    )
    assert cloud.living() == [H1]
    assert cloud.accept(sample(number=6, sent_s=cloud.now_s + WALL_S)) is R.OLD_SESSION


def test_agent_with_an_earlier_clock_is_accepted_after_a_silence():
    cloud = Cloud(dead_after_samples=2)
    cloud.collect("h1", times=2)
    cloud.round += 3
    assert cloud.accept(sample(session=8, started_s=5.0, sent_s=cloud.now_s + WALL_S)) is None


def test_replayed_samples_do_not_revive_a_host():
    cloud = Cloud(dead_after_samples=2)
    cloud.collect("h1", "h2", "h3", times=4)
    recorded = [sample("h3", number) for number in (3, 4)]
    cloud.collect("h1", "h2", times=3)
    cloud.members.forget_dead(cloud.now_s)
    assert cloud.members.list_hosts() == [H1, H2]
    assert [cloud.accept(again) for again in recorded] == [R.OUT_OF_ORDER] * 2
    other_session = sample("h3", 4, session=6, started_s=WALL_S - 200)
    assert cloud.accept(other_session) is R.OUT_OF_ORDER
    cloud.collect("h1", "h2", times=15)
    cloud.members.forget_dead(cloud.now_s)
    assert [cloud.accept(again) for again in recorded] == [R.LATE] * 2
    assert cloud.accept(sample("h3", cloud.round)) is None


def test_removed_host_frees_its_address_at_once():
    cloud = Cloud()
    cloud.collect("h1", "h2", times=2)
    cloud.members.remove_hosts(["h2", "h9"])
    assert cloud.living() == [H1] and cloud.members.list_hosts() == [H1]
    cloud.round += 1
    assert cloud.accept(sample("h3", cloud.round, address="10.0.0.2:7201")) is None


def test_peer_reports_do_not_change_another_hosts_traffic():
    cloud = Cloud()
    lies = {"h2": decision_messages.TrafficBytes(2**62, 2**62)}
    cloud.collect("h2", times=4)
    before = cloud.members[H2].traffic_share(), cloud.members[H2].last
    cloud.round -= 4
    cloud.collect("h1", times=4, peers=lies)
    assert (cloud.members[H2].traffic_share(), cloud.members[H2].last) == before
    assert cloud.members.list_overloaded(cloud.now_s) == []


def test_address_is_free_after_its_host_left():
    cloud = Cloud(dead_after_samples=2)
    cloud.collect("h1", "h2", "h3", times=2)
    cloud.collect("h1", "h2", times=3)
    moved = sample("h2", cloud.round + 1, address="10.0.0.3:7201", sent_s=cloud.now_s + WALL_S)
    assert cloud.accept(moved) is None


def test_a_host_is_overloaded_after_two_collections_in_a_row():
    cloud = Cloud()
    cloud.collect("h1", times=2)
    cloud.collect("h1", **busy(0.9))
    assert cloud.overloaded() == []
    cloud.collect("h1", **busy(0.5))
    cloud.collect("h1", **busy(0.9))
    assert cloud.overloaded() == []
    cloud.collect("h1", **busy(0.9))
    assert cloud.overloaded() == [H1]
    cloud.members.forget_overloads()
    assert cloud.overloaded() == []


def test_collections_with_a_gap_do_not_count_as_consecutive():
    cloud = Cloud()
    cloud.collect("h1", times=2)
    cloud.collect("h1", **busy(0.9))
    cloud.round += 1
    cloud.collect("h1", **busy(0.9))
    assert cloud.overloaded() == []


@pytest.mark.parametrize("share", [0.0, 0.8, 0.801, 5.0, 1e6])
def test_link_use_above_four_fifths_is_overload(share):
    cloud = Cloud()
    cloud.collect("h1", times=3, **busy(share))
    assert (cloud.overloaded() == [H1]) == (share > 0.8)
    assert cloud.members[H1].traffic_share() == min(share, 1.0)


def test_chunk_bytes_count_as_load_and_not_as_traffic():
    cloud = Cloud()
    cloud.collect("h1", times=3, **busy(0.9, 0.7))
    assert cloud.overloaded() == [H1]
    assert round(cloud.members[H1].traffic_share(), 6) == 0.2
    cloud.collect("h1", times=2, **busy(0.1, 0.7))  # chunk bytes with headers exceed the total
    assert cloud.members[H1].traffic_share() == 0


def test_restored_members_live_until_silent():
    cloud = Cloud(dead_after_samples=2)
    for host in ("h1", "h2", "h3"):
        cloud.members.restore_member(ids.HostId(host), f"10.0.0.{host[1:]}:7201", "", cloud.now_s)
    assert cloud.living() == [H1, H2, H3]
    cloud.collect("h1", "h2", times=3)
    assert cloud.living() == [H1, H2]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["h1", "h2"]),
            st.integers(1, 6),
            st.integers(1, 3),
            st.floats(0, 2 * WALL_S),
            st.sampled_from([0.0, 0.9, 7.0]),
        )
    )
)
def test_accepted_sample_numbers_of_a_session_only_grow(drawn):
    cloud = Cloud()
    for host, number, session, sent_s, share in drawn:
        cloud.round += 1
        fields = {"session": session, "started_s": 10.0 * session, "sent_s": sent_s}
        before = cloud.members[host].last if host in cloud.members else None
        refusal = cloud.accept(sample(host, number, **fields, **busy(share)))
        after = cloud.members[host].last if host in cloud.members else None
        if refusal is not None:
            assert after is before
        elif before is not None and before.session == after.session:
            longest_s = 6 * COLLECTION_S
            assert after.number > before.number or cloud.now_s > longest_s


def test_addresses_are_compared_in_normal_form():
    cloud = Cloud()
    cloud.collect("h1", "h2", times=2)
    for spelt in ("10.0.0.1:07201", "10.0.0.1:7201"):
        assert cloud.accept(sample("h3", 3, address=spelt)) is R.TAKEN_ADDRESS


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:7201",
        "224.0.0.1:7201",
        "169.254.169.254:80",
        "127.0.0.1:7201",
        "[::]:7201",
        "[::1]:7201",
        "[ff02::1]:7201",
        "[fe80::1]:7201",
        "[::ffff:127.0.0.1]:7201",
        "[::ffff:169.254.169.254]:80",
    ],
)
def test_address_that_cannot_reach_a_host_is_refused(address):
    cloud = Cloud()
    cloud.collect("h1", "h2", times=2)
    assert cloud.accept(sample("h3", 3, address=address)) is R.UNREACHABLE
    moved = sample("h2", cloud.round + 1, address=address, sent_s=cloud.now_s + WALL_S)
    assert cloud.accept(moved) is R.UNREACHABLE


def test_loopback_addresses_are_accepted_until_a_host_has_a_network_address():
    cloud = Cloud()
    for number in (1, 2):
        at = {"address": f"127.0.0.{number}:7201", "sent_s": WALL_S + 1}
        assert cloud.accept(sample(f"h{number}", 1, **at)) is None
    assert cloud.accept(sample("h3", 1, sent_s=WALL_S + 1)) is None  # an address of a network
    assert cloud.accept(sample("h1", 2, **at)) is R.UNREACHABLE


def test_moved_host_occupies_only_its_last_address():
    cloud = Cloud()
    cloud.collect("h1", times=2)
    for number in range(3, 40):
        assert (
            cloud.accept(sample("h1", number, address=f"10.0.0.{number}:7201", sent_s=WALL_S))
            is None
        )
    cloud.round = 39
    assert len(cloud.members._addresses) == 1
    assert cloud.accept(sample("h7", 40, sent_s=WALL_S + cloud.now_s)) is None


def test_live_hosts_never_share_an_address_while_most_are_silent():
    cloud = Cloud(dead_after_samples=3)
    cloud.collect("h1", "h2", "h3", times=2)
    cloud.round += 10
    cloud.collect("h9", times=2, address="10.0.0.1:7201")
    assert cloud.living() == ["h2", "h3", "h9"]


def test_hosts_per_ip_address_are_limited():
    cloud = Cloud(hosts_per_ip=3)
    for number in range(1, 8):
        at = {"address": f"10.0.0.1:{7200 + number}"}
        expected = None if number <= 3 else R.CROWDED
        assert cloud.accept(sample(f"h{number}", **at)) is expected
    assert cloud.accept(sample("h8", address="[::ffff:10.0.0.1]:7300")) is R.CROWDED
    cloud.round += 1
    assert cloud.accept(sample("h1", 2, address="10.0.0.1:7300")) is None  # it moves its port
    assert cloud.accept(sample("h2", 2)) is None  # it moves away
    assert cloud.accept(sample("h8", 2, address="10.0.0.1:7301")) is None
    assert cloud.members.refused[R.CROWDED] == 5


def test_hosts_per_loopback_address_are_not_limited():
    cloud = Cloud(hosts_per_ip=1)
    for number in range(1, 9):
        assert cloud.accept(sample(f"h{number}", address=f"127.0.0.1:{7200 + number}")) is None


def test_number_of_hosts_is_limited():
    cloud = Cloud(hosts=2)
    cloud.collect("h1", "h2", times=2)
    assert cloud.accept(sample("h3", 3)) is R.FULL
    cloud.collect("h1", "h2")


def test_new_host_replaces_the_longest_known_one_that_never_proved_its_address():
    cloud = Cloud(hosts=3, verify_addresses=True)
    cloud.collect("h1", "h2", "h3", times=2)
    cloud.members.record_proof(address_book.parse("10.0.0.1:7201"), "h1", cloud.now_s)
    moved = sample("h1", 3, address="10.0.0.9:7201")  # its new address is unproven
    assert cloud.accept(moved) is None
    for newcomer, left in (("h4", ["h1", "h3", "h4"]), ("h5", ["h1", "h4", "h5"])):
        assert cloud.accept(sample(newcomer, 3)) is None
        assert cloud.members.list_hosts() == left
    for n in (4, 5):
        cloud.members.record_proof(address_book.parse(f"10.0.0.{n}:7201"), f"h{n}", cloud.now_s)
    assert cloud.accept(sample("h6", 3)) is R.FULL
    cloud.members.remove_hosts(["h4"])
    assert cloud.accept(sample("h6", 3)) is None
    assert cloud.accept(sample("h2", 4)) is None
    assert cloud.members.list_hosts() == ["h1", "h2", "h5"]


@pytest.mark.parametrize("interval_s", [5e-324, 1e-300, 1e-4])
def test_too_short_interval_is_refused(interval_s):
    raw = msgspec.json.encode(sample(interval_s=interval_s))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(raw, type=decision_messages.Sample)


def test_largest_sample_gives_finite_traffic():
    cloud = Cloud()
    most = decision_messages.TrafficBytes(
        decision_messages.MAX_NUMBER, decision_messages.MAX_NUMBER
    )
    least = {"interval_s": decision_messages.LEAST_INTERVAL_S, "link_bytes_s": 1}
    cloud.collect("h1", "h2", times=2)
    assert cloud.accept(sample("h1", 3, total=most, **least)) is None
    assert 0 < cloud.members.traffic_cv(cloud.now_s) < 2
