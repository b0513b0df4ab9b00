# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire.peer import peer_compression
from acstor_common.wire.peer import peer_encryption
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from acstor_common.wire.peer import replica_messages
from tests.fakes import announced

DATA = pathlib.Path(__file__).parents[2] / "data"
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CID = ids.Cid(bytes(range(32)))
ASKER, ASKED = ids.HostId("host-1.example"), ids.HostId("host-2.example")
HELLO = peer_wire.Hello(ASKER, peer_wire.ConnectionClass.BULK, 7)
DEMAND_HELLO = HELLO._replace(klass=peer_wire.ConnectionClass.DEMAND)
PROOF = peer_wire.proof_of(CID, ASKER, ASKED)
MODE, PRIORITY = peer_wire.Mode, peer_wire.Priority
REQUEST = peer_wire.ChunkRequest(
    0x01020304, IMAGE, 1 << 40, 65536, PROOF, MODE.HOME, PRIORITY.PREFETCH, 5000
)
GET = peer_wire.Get((REQUEST,))
BATCH = peer_wire.Get(
    tuple(REQUEST._replace(request_id=n, offset=n << 16, mode=MODE.HELD) for n in (7, 1, 9))
)
RUN = REQUEST._replace(length=3 * 65536 + 5, chunk_bytes=65536)
RUNS = peer_wire.Get((RUN, RUN._replace(request_id=1, offset=0, length=65537)))
CHUNK = peer_wire.Chunk(0x01020304, b"chunk bytes")
ZEROS = peer_compression.compress(bytes(65536))
RUN = peer_wire.Chunk(0x01020305, b"three chunks", 5)
REFUSE = peer_wire.Refuse(9, peer_wire.RefuseCode.BUSY)
ADVERTISE = peer_wire.Advertise(announced.alone(0x0102030405060708, 1, 2**64 - 1))
REFER = peer_wire.Refer(0x01020304, (ids.HostId("host-7.example"), ids.HostId("h2")))
GONE = peer_wire.Gone(announced.alone(1, 2**64 - 1))
EVICTION_HINT = peer_wire.EvictionHint(announced.alone(1, 2**64 - 1))
SEGMENTS = peer_wire.Advertise(((7, 0x8001), (2**64 - 1, 1)), 16)
OTHER = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
LEASES = (replica_messages.Lease(IMAGE, 86400), replica_messages.Lease(OTHER, 0))
KEEP = peer_wire.ReplicaRequest(LEASES)
SHARES = (
    replica_messages.ImageShare(IMAGE, replica_messages.ShareState.KEPT, 1 << 40, 0x01020304),
    replica_messages.ImageShare(OTHER, replica_messages.ShareState.REFUSED, 0, 0),
)
KEPT = peer_wire.ReplicaReport(0x0102030405, SHARES)
PING, PONG = peer_wire.Ping, peer_wire.Pong
SAID = {
    "client": [
        HELLO,
        GET,
        peer_wire.Get((REQUEST._replace(mode=MODE.RELAYED, priority=PRIORITY.READAHEAD),)),
        BATCH,
        RUNS,
        peer_wire.Cancel((3,)),
        peer_wire.Cancel((9, 1)),
        PING(1 << 63),
        PONG(0),
        ADVERTISE,
        SEGMENTS,
        GONE,
        EVICTION_HINT,
        KEEP,
        KEPT,
        peer_wire.RaisePriority((9, 1)),
    ],
    "server": [HELLO._replace(host_id=ASKED), CHUNK, RUN, REFUSE, PING(5), PONG(6), REFER],
}
KEYS = peer_encryption.keys(bytes(range(32)), bytes(range(32, 64)))._asdict()
ACCEPTED = {"client": peer_wire.FROM_CLIENT, "server": peer_wire.FROM_SERVER}
BOTH = peer_wire.FROM_CLIENT | peer_wire.FROM_SERVER

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
proofs = st.binary(min_size=16, max_size=16)
hosts = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", fullmatch=True)


@st.composite
def chunk_messages(draw) -> peer_wire.Chunk:
    data = draw(st.binary(min_size=1, max_size=9000))
    count = draw(st.integers(1, min(len(data), peer_wire.MAX_BATCH)))
    size = -(-len(data) // count)
    return peer_wire.Chunk(draw(st.integers(0, 2**32 - 64)), data, size if size < len(data) else 0)


def singly(messages) -> list[peer_wire.Message]:
    """Return messages with the chunks of runs separated."""
    return [
        one
        for message in messages
        for one in (message.iter_chunks() if isinstance(message, peer_wire.Chunk) else (message,))
    ]


@st.composite
def get_messages(draw) -> peer_wire.Get:
    numbers = draw(st.lists(u32, min_size=1, max_size=64, unique=True))
    shared = {
        "image_id": str(draw(st.uuids())),
        "mode": draw(st.sampled_from(MODE)),
        "priority": draw(st.sampled_from([PRIORITY.READAHEAD, PRIORITY.PREFETCH])),
        "timeout_ms": draw(st.integers(1, 2**32 - 1)),
    }
    if draw(st.booleans()):
        count = draw(st.integers(2, 64))
        size = draw(st.integers(1, peer_wire.MAX_DATA_BYTES // count))
        length = (count - 1) * size + draw(st.integers(1, size))
        place = draw(st.integers(0, 2**32 - count)), shared["image_id"], draw(st.integers(0, 2**50))
        how = shared["mode"], shared["priority"], shared["timeout_ms"], size
        return peer_wire.Get((peer_wire.ChunkRequest(*place, length, draw(proofs), *how),))
    step = draw(st.integers(1, 2**50))
    length, proof = draw(st.integers(1, peer_wire.MAX_DATA_BYTES)), draw(proofs)
    return peer_wire.Get(
        tuple(
            peer_wire.ChunkRequest(number, offset=at * step, length=length, proof=proof, **shared)
            for at, number in enumerate(numbers)
        )
    )


@st.composite
def news_of_segments(draw) -> peer_wire.Announcement:
    length = draw(st.sampled_from([1, 2, 4, 8, 16]))
    chunks = st.tuples(st.integers(1, 2**64 - 1), st.integers(1, (1 << length) - 1))
    kind = draw(st.sampled_from([peer_wire.Advertise, peer_wire.Gone, peer_wire.EvictionHint]))
    return kind(tuple(draw(st.lists(chunks, min_size=1, max_size=512))), length)


gets = get_messages()
later_messages = st.one_of(
    gets,
    chunk_messages(),
    st.builds(peer_wire.Refuse, u32, st.sampled_from(peer_wire.RefuseCode)),
    st.builds(peer_wire.Cancel, st.lists(u32, min_size=1, max_size=64, unique=True).map(tuple)),
    st.builds(
        peer_wire.RaisePriority, st.lists(u32, min_size=1, max_size=64, unique=True).map(tuple)
    ),
    st.builds(peer_wire.Ping, u64),
    st.builds(peer_wire.Pong, u64),
    news_of_segments(),
    st.builds(
        peer_wire.ReplicaRequest,
        st.lists(
            st.builds(replica_messages.Lease, st.uuids().map(str), st.integers(0, 86400)),
            min_size=1,
            max_size=256,
            unique_by=lambda lease: lease.image_id,
        ).map(tuple),
    ),
    st.builds(
        peer_wire.ReplicaReport,
        u64,
        st.lists(
            st.builds(
                lambda image_id, state, sizes: replica_messages.ImageShare(
                    image_id, state, max(sizes), min(sizes)
                ),
                st.uuids().map(str),
                st.sampled_from(replica_messages.ShareState),
                st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
            ),
            min_size=1,
            max_size=128,
            unique_by=lambda share: share.image_id,
        ).map(tuple),
    ),
    st.builds(
        peer_wire.Refer,
        u32,
        st.lists(hosts, min_size=1, max_size=4, unique=True).map(tuple),
    ),
)


def stream(
    *messages: peer_wire.Message, encryption: peer_encryption.Encryption | None = None
) -> bytes:
    return b"".join(b"".join(peer_wire.encode(message, encryption)) for message in messages)


def encryption_of(side="client") -> peer_encryption.Encryption:
    return peer_encryption.Encryption(KEYS[side])


def frame(type_: int, body: bytes, magic: int = 0x4143, version: int = 3) -> bytes:
    head = magic.to_bytes(2, "big") + bytes([version, type_]) + len(body).to_bytes(4, "big")
    return head + body


def receiver(
    accepts=BOTH, encryption: peer_encryption.Encryption | None = None
) -> peer_receiver.Receiver:
    return peer_receiver.receiver("peer-1", accepts, encryption)


def receive(to: peer_receiver.Receiver, data: bytes) -> list[peer_wire.Message]:
    """Fill the receiver's buffers in order, as a socket does."""
    messages = []
    while data:
        count = 0
        for buffer in to.get_buffers():
            part = data[: len(buffer)]
            buffer[: len(part)] = part
            data = data[len(part) :]
            count += len(part)
        messages += to.bytes_received(count)
    return messages


@pytest.mark.parametrize("side", SAID)
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_golden_bytes_are_encoded_and_decoded(side, is_encrypted):
    golden = json.loads((DATA / "peer-wire-v3.json").read_bytes())
    frames = [bytes.fromhex(text) for text in golden[f"encrypted {side}" if is_encrypted else side]]
    ours, theirs = (encryption_of(side) if is_encrypted else None for _ in range(2))
    assert [stream(message, encryption=ours) for message in SAID[side]] == frames
    assert receiver(ACCEPTED[side], theirs).feed_bytes(b"".join(frames)) == SAID[side]


def test_golden_bytes_of_two_chunks_are_one_frame():
    golden = json.loads((DATA / "peer-wire-v3.json").read_bytes())
    [frame_] = golden["server, two chunks"]
    chunks = [peer_wire.Chunk(9, b"one"), peer_wire.Chunk(2, b"two!")]
    assert b"".join(peer_wire.encode_chunks(chunks)).hex() == frame_
    assert receiver().feed_bytes(stream(HELLO) + bytes.fromhex(frame_))[1:] == chunks


@given(
    st.lists(later_messages, max_size=8), st.lists(st.integers(1, 5000), max_size=30), st.booleans()
)
def test_messages_are_decoded_however_the_stream_is_cut(messages, cuts, is_encrypted):
    sent = [HELLO, *messages]
    ours, theirs = (encryption_of() if is_encrypted else None for _ in range(2))
    data, to, got = stream(*sent, encryption=ours), receiver(encryption=theirs), []
    for cut in [*cuts, len(data) + 1]:
        got += receive(to, data[:cut])
        data = data[cut:]
    assert singly(got) == singly(sent) and to.is_between_frames


@given(
    st.lists(later_messages, max_size=8), st.lists(st.integers(1, 5000), max_size=30), st.booleans()
)
def test_wanted_bytes_never_reach_past_the_current_frame(messages, cuts, is_encrypted):
    ours, theirs = (encryption_of() if is_encrypted else None for _ in range(2))
    data, to = stream(HELLO, *messages, encryption=ours), receiver(encryption=theirs)
    ends, end = set(), 0
    for message in (HELLO, *messages):
        end += len(stream(message)) + (20 if is_encrypted else 0)
        ends.add(end)
    position = 0
    while position < len(data):
        wanted = to.wanted_bytes
        assert wanted >= 1
        assert not any(position < end < position + wanted for end in ends)
        receive(to, data[position : position + wanted])
        position += wanted


def test_chunk_is_received_into_the_buffers_without_a_copy():
    to = receiver(peer_wire.FROM_SERVER)
    data = stream(HELLO, peer_wire.Chunk(1, bytes(100_000)))
    receive(to, data[:5000])
    view = to.get_buffers()[0]
    view[0] = 77
    place = 100_000 - len(view)
    to.bytes_received(1)
    [chunk] = receive(to, data[5001:])
    assert chunk.data[place] == 77 and bytes(chunk.data).count(0) == 99_999


def test_sent_chunk_is_not_copied():
    data = bytearray(70_000)
    assert peer_wire.encode(peer_wire.Chunk(1, data))[1] is data


def run(sizes: list[int]) -> list[peer_wire.Chunk]:
    return [peer_wire.Chunk(n, bytes([n % 251]) * size) for n, size in enumerate(sizes)]


@given(
    st.lists(st.integers(1, 400_000), min_size=1, max_size=100),
    st.lists(st.integers(1, 300_000), max_size=30),
    st.booleans(),
)
def test_chunks_sent_together_are_received_separately(sizes, cuts, is_encrypted):
    ours, theirs = (encryption_of() if is_encrypted else None for _ in range(2))
    sent = run(sizes)
    hello = stream(HELLO, encryption=ours)
    data = hello + b"".join(map(bytes, peer_wire.encode_chunks(sent, ours)))
    to, got = receiver(encryption=theirs), []
    for cut in [*cuts, len(data)]:
        got += receive(to, data[:cut])
        data = data[cut:]
    assert got == [HELLO, *sent] and to.is_between_frames


def test_chunk_is_delivered_before_the_next_one_of_its_frame_arrives():
    data = b"".join(map(bytes, peer_wire.encode_chunks(run([50_000, 60_000]))))
    to = receiver(peer_wire.FROM_SERVER)
    assert receive(to, stream(HELLO) + data[:50_041]) == [HELLO, run([50_000])[0]]
    assert to.wanted_bytes == 60_000 and not to.is_between_frames
    assert receive(to, data[50_041:]) == run([0, 60_000])[1:]


def test_chunks_of_a_run_are_delivered_as_far_as_received():
    [head, data] = peer_wire.encode_chunks([peer_wire.Chunk(7, bytes(range(100)) * 4, 150)])
    to = receiver(peer_wire.FROM_SERVER)
    assert receive(to, stream(HELLO) + head + data[:149]) == [HELLO]
    assert to.wanted_bytes == 1
    [one] = receive(to, data[149:299])
    assert one == (7, data[:150], 0, 0) and to.wanted_bytes == 1
    [rest] = receive(to, data[299:])
    assert rest == (8, data[150:], 150, 0) and [c.request_id for c in rest.iter_chunks()] == [8, 9]
    assert to.is_between_frames and rest.data.obj is one.data.obj


def test_unexpected_chunks_of_a_run_get_separate_buffers():
    to = receiver(peer_wire.FROM_SERVER)
    to.expects = lambda chunks: False
    run_ = peer_wire.Chunk(7, bytes(range(100)), 40)
    _, *chunks = to.feed_bytes(stream(HELLO) + b"".join(peer_wire.encode_chunks([run_])))
    assert chunks == list(run_.iter_chunks()) and {type(chunk.data) for chunk in chunks} == {bytes}


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("is_encrypted", [True, False])
def test_compressed_chunk_is_decompressed_among_others(is_encrypted, is_awaited):
    ours, theirs = (encryption_of("server") if is_encrypted else None for _ in range(2))
    to, asked = receiver(peer_wire.FROM_SERVER, theirs), []
    to.expects = lambda chunks: asked.append(chunks) or is_awaited
    answers = [peer_wire.Chunk(7, ZEROS, raw_bytes=65536), peer_wire.Chunk(8, b"as it is")]
    data = stream(HELLO, encryption=ours)
    data += b"".join(peer_wire.encode_chunks(answers, ours))
    assert len(data) < 300
    _, *got = receive(to, data)
    assert got == [(7, bytes(65536), 0, 0), (8, b"as it is", 0, 0)]
    assert asked == [[(7, 65536, 0), (8, 8, 0)]]


@pytest.mark.parametrize(("run_bytes", "numbers"), [(400, [[7, 8, 9]]), (299, [[7], [8], [9]])])
def test_run_longer_than_a_frame_is_split(run_bytes, numbers):
    run_ = peer_wire.Chunk(7, bytes(range(100)) * 4, 150)
    buffers = peer_wire.encode_chunks([run_], run_bytes=run_bytes)
    _, *got = receiver(peer_wire.FROM_SERVER).feed_bytes(stream(HELLO) + b"".join(buffers))
    assert [[*one.numbers] for one in got] == numbers and singly(got) == list(run_.iter_chunks())


def test_encrypted_chunk_is_delivered_only_after_its_tag_is_verified():
    ours = encryption_of("server")
    frames = stream(HELLO, encryption=ours) + b"".join(peer_wire.encode_chunks(run([5, 6]), ours))
    to = receiver(peer_wire.FROM_SERVER, encryption_of("server"))
    assert to.feed_bytes(frames[:-1]) == [HELLO]
    with pytest.raises(errors.RemoteProtocolError, match="MAC"):
        to.feed_bytes(bytes([frames[-1] ^ 1]))


def test_chunks_of_a_frame_share_one_buffer():
    to = receiver(peer_wire.FROM_SERVER)
    _, *chunks = to.feed_bytes(
        stream(HELLO) + b"".join(peer_wire.encode_chunks(run([4096, 4096, 100])))
    )
    assert len({id(chunk.data.obj) for chunk in chunks}) == 1
    assert chunks[0].data.obj == b"".join(chunk.data for chunk in chunks)


def test_encrypted_chunks_share_one_buffer_and_are_checked_as_expected():
    ours, theirs = encryption_of("server"), encryption_of("server")
    to, asked = receiver(peer_wire.FROM_SERVER, theirs), []
    to.expects = lambda chunks: asked.append(chunks) or True
    data = b"".join(peer_wire.encode_chunks(run([5000, 6000]), ours))
    assert to.feed_bytes(stream(HELLO, encryption=encryption_of("server"))) == [HELLO]
    with pytest.raises(errors.RemoteProtocolError, match="MAC"):
        to.feed_bytes(data)  # the record has nonce 0, and nonce 1 is expected
    ours, theirs = encryption_of("server"), encryption_of("server")
    to = receiver(peer_wire.FROM_SERVER, theirs)
    to.expects = lambda chunks: asked.append(chunks) or True
    hello = stream(HELLO, encryption=ours)
    data = b"".join(peer_wire.encode_chunks(run([5000, 6000]), ours))
    _, *chunks = receive(to, hello + data)
    assert chunks == run([5000, 6000]) and asked == [[(0, 5000, 0), (1, 6000, 0)]]
    assert len({id(chunk.data.obj) for chunk in chunks}) == 1


@pytest.mark.parametrize("cut", [0, 7, 9, 20])
def test_encrypted_frame_with_a_length_mismatch_is_refused(cut):
    ours, theirs = encryption_of(), encryption_of()
    to = receiver(encryption=theirs)
    to.feed_bytes(stream(HELLO, encryption=ours))
    with pytest.raises(errors.RemoteProtocolError, match="peer-1"):
        to.feed_bytes(ours.encrypt([stream(GET)[:cut] if cut else stream(GET) + b"x"]))


@pytest.mark.parametrize(
    ("accepts", "length"),
    [
        (peer_wire.FROM_SERVER, 7),
        (peer_wire.FROM_SERVER, 2**22 + 26),
        (peer_wire.FROM_CLIENT, 2**13),
        (peer_wire.FROM_CLIENT, 2**32 - 1),
    ],
)
def test_record_length_is_checked_before_allocation(accepts, length):
    to = receiver(accepts, encryption_of())
    to.feed_bytes(stream(HELLO, encryption=encryption_of()))
    with pytest.raises(errors.RemoteProtocolError, match=f"frame of {length} bytes"):
        to.feed_bytes(length.to_bytes(4, "big"))
    assert to._data is None


def test_record_length_is_limited_to_the_awaited_chunks():
    one, other = (receiver(peer_wire.FROM_SERVER, encryption_of()) for _ in range(2))
    for to in (one, other):
        to.feed_bytes(stream(HELLO, encryption=encryption_of()))
        to.awaited_bytes = lambda: 2**16
    one.feed_bytes((2**16 + 25).to_bytes(4, "big"))
    assert one._data is not None
    with pytest.raises(errors.RemoteProtocolError, match=f"frame of {2**17} bytes"):
        other.feed_bytes((2**17).to_bytes(4, "big"))
    assert other._data is None


@pytest.mark.parametrize("accepts", [peer_wire.FROM_SERVER, peer_wire.FROM_CLIENT])
def test_first_record_is_limited_to_the_length_of_a_hello(accepts):
    """An unidentified peer cannot make the receiver allocate memory for a chunk."""
    longest = peer_wire.Hello(ids.HostId(255 * "h"), peer_wire.ConnectionClass.BULK, 1)
    data = stream(longest, encryption=encryption_of())
    assert receiver(accepts, encryption_of()).feed_bytes(data) == [longest]
    to, length = receiver(accepts, encryption_of()), len(stream(longest)) + 1
    with pytest.raises(errors.RemoteProtocolError, match=f"frame of {length} bytes"):
        to.feed_bytes(length.to_bytes(4, "big"))


def test_both_sides_rekey_after_the_same_number_of_bytes():
    ours, theirs = (peer_encryption.Encryption(bytes(32), rekey_bytes=100) for _ in range(2))
    keys = set()
    for number in range(20):
        record = ours.encrypt([bytes([number]) * 30])
        assert bytes(theirs.decrypt(memoryview(record))) == bytes([number]) * 30
        keys.add(ours._key)
    assert len(keys) == 5 and ours._key == theirs._key


def test_chunk_heads_are_checked_before_allocation():
    asked = []

    def expects(chunks):
        asked.append((chunks, to._data))
        return False

    to = receiver(peer_wire.FROM_SERVER)
    to.expects = expects
    data = b"".join(peer_wire.encode_chunks(run([5000, 6000])))
    assert to.feed_bytes(stream(HELLO) + data[:41]) == [HELLO]
    assert asked == [([(0, 5000, 0), (1, 6000, 0)], None)]
    chunks = to.feed_bytes(data[41:])
    assert chunks == run([5000, 6000])
    assert {type(chunk.data) for chunk in chunks} == {
        bytes
    }  # neither keeps the other's memory alive


@pytest.mark.parametrize(
    ("sizes", "is_encrypted", "frames"),
    [
        ([65536] * 16, False, 1),
        ([65536] * 17, False, 2),
        ([65536] * 16, True, 1),
        ([4096] * 64, False, 1),
        ([4096] * 65, False, 2),
        ([2**22, 1, 2**22], False, 3),
        ([], False, 0),
    ],
)
def test_chunks_are_packed_into_as_few_frames_as_allowed(sizes, is_encrypted, frames):
    sent = [peer_wire.Chunk(n, bytes(size)) for n, size in enumerate(sizes)]
    buffers = peer_wire.encode_chunks(sent, encryption_of() if is_encrypted else None)
    if is_encrypted:
        assert len(buffers) == frames
        return
    assert len(buffers) == len(sizes) + frames
    assert all(
        chunk.data is buffer for chunk, buffer in zip(sent[:16], buffers[1:], strict=False)
    ) or (frames > 1)


def test_empty_chunk_is_not_sent_among_others():
    with pytest.raises(errors.LocalProtocolError, match="Chunk"):
        peer_wire.encode_chunks(run([5, 0]))


def test_reused_request_number_goes_into_another_frame():
    chunks = [*run([5, 6]), *run([7])]
    data = stream(HELLO) + b"".join(peer_wire.encode_chunks(chunks))
    assert receiver(peer_wire.FROM_SERVER).feed_bytes(data)[1:] == chunks


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=200))
def test_requests_are_batched_by_mode_without_duplicate_chunks(wishes):
    asked = [
        REQUEST._replace(request_id=n, offset=at << 16, mode=list(MODE)[kind])
        for n, (kind, at) in enumerate(wishes)
    ]
    sent = list(peer_wire.batches(asked))
    for get in sent:
        peer_wire.encode(get)  # it may be sent
    assert sorted(r for get in sent for r in get.requests) == sorted(asked)
    by_mode = [[r for get in sent for r in get.requests if r.mode is mode] for mode in MODE]
    assert by_mode == [[r for r in asked if r.mode is mode] for mode in MODE]  # in order


@given(st.data(), st.lists(later_messages, min_size=1, max_size=4))
def test_changed_missing_or_repeated_frame_is_refused(data, messages):
    frames = [
        b"".join(peer_wire.encode(m, encryption))
        for encryption in [encryption_of()]
        for m in (HELLO, *messages, *messages)
    ]
    number = data.draw(st.integers(1, len(messages)))
    match data.draw(st.sampled_from(["change", "leave out", "double", "swap"])):
        case "change":
            place = data.draw(st.integers(0, len(frames[number]) - 1))
            changed = bytearray(frames[number])
            changed[place] ^= 1 << data.draw(st.integers(0, 7))
            frames[number] = bytes(changed)
        case "leave out":
            del frames[number]
        case "double":
            frames.insert(number, frames[number])
            number += 1
        case "swap":
            frames[number], frames[number + 1] = frames[number + 1], frames[number]
    to, got = receiver(encryption=encryption_of()), []
    with contextlib.suppress(errors.RemoteProtocolError):
        for frame_ in frames:
            got += to.feed_bytes(frame_)
        assert not to.is_between_frames  # a changed length waits for bytes that never arrive
    assert got == [HELLO, *messages, *messages][: len(got)] and len(got) <= number


def test_frames_of_the_other_direction_or_in_clear_text_are_refused():
    for data in (stream(HELLO, encryption=encryption_of("server")), stream(HELLO, HELLO, HELLO)):
        with pytest.raises(errors.RemoteProtocolError, match=r"MAC|frame of"):
            receiver(encryption=encryption_of()).feed_bytes(data)


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (b"\x15\x03\x03\0\2\2\x46\0", "speaks TLS"),
        (b"\x16\x03\x01\2\0\1\0\1", "speaks TLS"),
        (b"AC\x01\x01\0\0\0\x19", "speaks version 1 .* this host 3"),
    ],
)
def test_peer_with_tls_or_another_version_is_refused_with_the_reason(start, why):
    with pytest.raises(errors.RemoteProtocolError, match=why):
        receiver().feed_bytes(start)


def test_proof_is_bound_to_a_host_pair_and_hides_the_cid():
    others = [
        peer_wire.proof_of(CID, ASKED, ASKER),
        peer_wire.proof_of(CID, ASKER, ids.HostId("h3")),
        peer_wire.proof_of(ids.Cid(bytes(31) + b"\1"), ASKER, ASKED),
        CID[:16],
    ]
    assert len(PROOF) == 16 and len({PROOF, *others}) == 5


def test_largest_messages_fit_the_small_buffer_however_cut():
    full = peer_wire.Advertise(tuple((2**63 + n, 0xFFFF) for n in range(512)), 16)
    longest = peer_wire.Refer(1, tuple(ids.HostId(c * 255) for c in "abcd"))
    data = stream(HELLO, full, longest, full)
    for cut in (1, 7, 4095, 4096, 4097, 8191, len(data)):
        to = receiver()
        assert receive(to, data[:cut]) + receive(to, data[cut:]) == [HELLO, full, longest, full]
        assert max(map(len, to.get_buffers())) <= peer_receiver.SMALL_BYTES


def lease(lease_s: int = 60, number: int = 0) -> bytes:
    return number.to_bytes(16, "big") + lease_s.to_bytes(4, "big")


def leases_of(count: int) -> bytes:
    return b"".join(lease(number=number) for number in range(count))


def share(state: int = 1, total: int = 8, left: int = 0) -> bytes:
    return bytes(16) + bytes([state]) + total.to_bytes(8, "big") + left.to_bytes(8, "big")


def chunk_body(index: list[tuple[int, ...]], data: bytes | None = None) -> bytes:
    """Return the body of a frame with chunks.

    :param index: number and length of each run, its chunks' length, its length uncompressed
    """
    heads = [(*one, 0, 0)[:4] for one in index]
    said = b"".join(field.to_bytes(4, "big") for head in heads for field in head)
    data = bytes(sum(length for _, length, _, _ in heads)) if data is None else data
    return bytes([len(index)]) + said + data


def urgent(get: peer_wire.Get) -> peer_wire.Get:
    return peer_wire.Get(tuple(r._replace(priority=PRIORITY.PEER) for r in get.requests))


BAD_STREAMS = {
    "wrong magic": frame(1, b"x", magic=0x1603),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "unknown major version": frame(1, b"x", version=4),
    "Get before Hello": stream(GET),
    "Chunk before Hello": stream(CHUNK),
    "unknown before Hello": frame(99, b""),
    "Hello twice": stream(HELLO, HELLO),
    "Hello without a host": frame(1, bytes(9)),
    "Hello of class 9": frame(1, bytes([9]) + bytes(8) + b"host"),
    "host id with a space": frame(1, bytes([1]) + bytes(8) + b"my host"),
    "host id that is not ASCII": frame(1, bytes([1]) + bytes(8) + b"h\xff"),
    "host id of 256 bytes": frame(1, bytes([1]) + bytes(8) + b"h" * 256),
    "Chunk without a count": stream(HELLO) + frame(3, b""),
    "Chunk of none": stream(HELLO) + frame(3, chunk_body([]) + bytes(20)),
    "empty Chunk": stream(HELLO) + frame(3, chunk_body([(1, 0)], b"x")),
    "Chunk with an empty one in it": stream(HELLO) + frame(3, chunk_body([(1, 9), (2, 0)])),
    "Chunk longer than its header": stream(HELLO) + frame(3, chunk_body([(1, 9)], bytes(10))),
    "Chunk shorter than its header": stream(HELLO) + frame(3, chunk_body([(1, 9)], bytes(8))),
    "Chunk that ends in its index": stream(HELLO) + frame(3, b"\x40" + bytes(20)),
    "Chunk with a number twice": stream(HELLO) + frame(3, chunk_body([(1, 9), (1, 9)])),
    "Chunk of 65": stream(HELLO) + frame(3, chunk_body([(n, 1) for n in range(65)])),
    "Chunks of 4 GiB": stream(HELLO) + frame(3, chunk_body([(1, 2**32 - 1), (2, 1)], b"x")),
    "oversized Chunk": stream(HELLO) + frame(3, chunk_body([(1, 2**22 + 1)], bytes(2**22 + 1))),
    "oversized body of a Chunk": stream(HELLO) + b"AC\x03\x03" + bytes([0, 64, 0, 18]),
    "run of one chunk": stream(HELLO) + frame(3, chunk_body([(1, 9, 9)])),
    "run of 65 chunks": stream(HELLO) + frame(3, chunk_body([(1, 65, 1)])),
    "run of a million chunks": stream(HELLO) + frame(3, chunk_body([(1, 2**20, 1)])),
    "two runs of 65 chunks": stream(HELLO) + frame(3, chunk_body([(1, 33, 1), (99, 32, 1)])),
    "oversized run": stream(HELLO) + frame(3, chunk_body([(1, 2**20 + 1, 2**20)])),
    "runs with a number twice": stream(HELLO) + frame(3, chunk_body([(1, 4, 2), (2, 9)])),
    "run beyond the last number": stream(HELLO) + frame(3, chunk_body([(2**32 - 1, 4, 2)])),
    "compressed run": stream(HELLO) + frame(3, chunk_body([(1, 9, 5, 99)])),
    "compressed to no less": stream(HELLO) + frame(3, chunk_body([(1, 9, 0, 9)])),
    "compressed and oversized": stream(HELLO) + frame(3, chunk_body([(1, 9, 0, 2**22 + 1)])),
    "two compressed and oversized": stream(HELLO)
    + frame(3, chunk_body([(1, 9, 0, 2**19), (2, 9, 0, 2**19 + 1)])),
    "compressed, and is not": stream(HELLO) + frame(3, chunk_body([(1, 9, 0, 99)])),
    "compressed data longer than stated": stream(HELLO)
    + frame(3, chunk_body([(1, len(ZEROS), 0, 65535)], ZEROS)),
    "compressed data shorter than stated": stream(HELLO)
    + frame(3, chunk_body([(1, len(ZEROS), 0, 65537)], ZEROS)),
    "compressed with more behind it": stream(HELLO)
    + frame(3, chunk_body([(1, len(ZEROS) + 1, 0, 65536)], ZEROS + b"x")),
    "oversized Chunk of two": stream(HELLO) + frame(3, chunk_body([(1, 2**20), (2, 1)])),
    "unknown": stream(HELLO) + frame(99, b""),
    "oversized unknown": stream(HELLO) + b"AC\x03\x63" + b"\xff" * 4,
    "Get of nothing": stream(HELLO) + stream(GET)[:30].replace(b"\x3a", b"\x16", 1),
    "short Get": stream(HELLO) + frame(2, bytes(57)),
    "long Get": stream(HELLO) + frame(2, stream(GET)[8:] + b"x"),
    "Get of 65 chunks": stream(HELLO) + frame(2, bytes(22 + 65 * 36)),
    "urgent Get on a bulk connection": stream(HELLO, urgent(GET)),
    "Get that is not where guests wait": stream(DEMAND_HELLO, GET),
    "short Cancel": stream(HELLO) + frame(5, bytes(3)),
    "Cancel of a number and a half": stream(HELLO) + frame(5, bytes(6)),
    "Cancel of 65": stream(HELLO) + frame(5, bytes(range(260 % 256)) * 65),
    "Cancel of a number twice": stream(HELLO) + frame(5, bytes(8)),
    "RaisePriority of nothing": stream(HELLO) + frame(14, b""),
    "RaisePriority of a number and a half": stream(HELLO) + frame(14, bytes(6)),
    "RaisePriority of 65": stream(HELLO) + frame(14, b"".join(n.to_bytes(4) for n in range(65))),
    "RaisePriority of a number twice": stream(HELLO) + frame(14, bytes(8)),
    "RaisePriority where guests wait": stream(DEMAND_HELLO, peer_wire.RaisePriority((1,))),
    "RaisePriority before Hello": stream(peer_wire.RaisePriority((1,))),
    "long Ping": stream(HELLO) + frame(6, bytes(9)),
    "unknown refusal": stream(HELLO) + frame(4, bytes(4) + b"\x09"),
    "refusal with a text": stream(HELLO) + frame(4, bytes(4) + b"\x01a"),
    "Advertise of nothing": stream(HELLO) + frame(8, b""),
    "Advertise of half a chunk": stream(HELLO) + frame(8, bytes([1] * 13)),
    "Advertise of 513 chunks": stream(HELLO) + frame(8, bytes([1] * (1 + 513 * 8))),
    "Advertise of the zero chunk": stream(HELLO) + frame(8, bytes([1] * 9) + bytes(8)),
    "Advertise of half a segment": stream(HELLO) + frame(8, b"\x10" + bytes([1] * 19)),
    "Advertise of 513 segments": stream(HELLO) + frame(8, b"\x10" + bytes([1] * 513 * 10)),
    "Advertise of segments of 3": stream(HELLO) + frame(8, b"\x03" + bytes(9) + b"\x01"),
    "Advertise of segments of 0": stream(HELLO) + frame(8, bytes(9) + b"\x01"),
    "Advertise of no chunk of a segment": stream(HELLO) + frame(8, b"\x10" + b"1" * 8 + bytes(2)),
    "Advertise of a chunk too far": stream(HELLO) + frame(8, b"\x04" + b"1" * 8 + b"\0\x10"),
    "Advertise where guests wait": stream(DEMAND_HELLO, ADVERTISE),
    "Advertise before Hello": stream(ADVERTISE),
    "Gone with nothing": stream(HELLO) + frame(10, b""),
    "Gone with half a chunk": stream(HELLO) + frame(10, bytes([1] * 13)),
    "Gone with 513 chunks": stream(HELLO) + frame(10, bytes([1] * (1 + 513 * 8))),
    "Gone with the zero chunk": stream(HELLO) + frame(10, b"\x01" + bytes(8)),
    "Gone where guests wait": stream(DEMAND_HELLO, GONE),
    "EvictionHint of nothing": stream(HELLO) + frame(11, b""),
    "EvictionHint of half a chunk": stream(HELLO) + frame(11, bytes([1] * 13)),
    "EvictionHint of 513 chunks": stream(HELLO) + frame(11, bytes([1] * (1 + 513 * 8))),
    "EvictionHint of the zero chunk": stream(HELLO) + frame(11, bytes([1] * 9) + bytes(8)),
    "EvictionHint where guests wait": stream(DEMAND_HELLO, EVICTION_HINT),
    "EvictionHint before Hello": stream(EVICTION_HINT),
    "Keep of nothing": stream(HELLO) + frame(12, b""),
    "Keep of half a lease": stream(HELLO) + frame(12, bytes(30)),
    "Keep of 257 images": stream(HELLO) + frame(12, leases_of(257)),
    "Keep of an image twice": stream(HELLO) + frame(12, 2 * lease()),
    "Keep for longer than a day": stream(HELLO) + frame(12, lease(lease_s=86401)),
    "Keep for 136 years": stream(HELLO) + frame(12, lease(lease_s=2**32 - 1)),
    "Keep where guests wait": stream(DEMAND_HELLO, KEEP),
    "Keep before Hello": stream(KEEP),
    "Kept of nothing": stream(HELLO) + frame(13, bytes(8)),
    "Kept of half a share": stream(HELLO) + frame(13, bytes(8 + 20)),
    "Kept of an image twice": stream(HELLO) + frame(13, bytes(8) + 2 * share()),
    "Kept of 129 images": stream(HELLO) + frame(13, bytes(8 + 129 * 33)),
    "Kept with more left than there is": stream(HELLO) + frame(13, bytes(8) + share(left=9)),
    "Kept with 2^63 bytes": stream(HELLO) + frame(13, bytes(8) + share(total=2**63)),
    "Kept in an unknown state": stream(HELLO) + frame(13, bytes(8) + share(state=6)),
    "Kept where guests wait": stream(DEMAND_HELLO, KEPT),
    "Refer to no host": stream(HELLO) + frame(9, bytes(4) + b"\0\0\0"),
    "Refer to a host without a name": stream(HELLO) + frame(9, bytes(4) + b"\2\1h\0"),
    "Refer to a host twice": stream(HELLO) + frame(9, bytes(4) + b"\2\1h\1h"),
    "Refer to five hosts": stream(HELLO) + frame(9, bytes(4) + b"\5\1a\1b\1c\1d\1e"),
    "Refer that is cut off": stream(HELLO) + frame(9, bytes(4) + b"\1\5host"),
    "Refer to fewer hosts than promised": stream(HELLO) + frame(9, bytes(4) + b"\2\4host"),
    "Refer to more hosts than promised": stream(HELLO) + frame(9, bytes(4) + b"\1\1a\1b"),
    "Refer to a host with a space": stream(HELLO) + frame(9, bytes(4) + b"\1\3a b"),
    "Refer to a host that is not ASCII": stream(HELLO) + frame(9, bytes(4) + b"\1\2a\xff"),
    "oversized Refer": stream(HELLO) + frame(9, bytes(4) + b"\5" + 5 * (b"\xff" + 255 * b"h")),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
def test_invalid_stream_is_refused_with_the_name_of_the_peer(name):
    with pytest.raises(errors.RemoteProtocolError, match="peer-1"):
        receive(receiver(), BAD_STREAMS[name])


def raw_get(chunks=1, **changes) -> bytes:
    fields = {
        "length": 1,
        "offset": 0,
        "timeout": 1,
        "mode": 0,
        "priority": 3,
        "number": 0,
        "size": 0,
    }
    fields |= changes
    head = bytes(16) + fields["timeout"].to_bytes(4, "big")
    body = head + bytes([fields["mode"], fields["priority"]])
    for n in range(chunks):
        body += (fields["number"] or n).to_bytes(4, "big")
        body += (fields["offset"] or n).to_bytes(8, "big")
        body += fields["length"].to_bytes(4, "big") + fields["size"].to_bytes(4, "big") + PROOF
    return frame(2, body)


@pytest.mark.parametrize(
    "changes",
    [
        {"length": 0},
        {"length": 4 * 2**20 + 1},
        {"offset": 2**63 - 1},
        {"timeout": 0},
        {"mode": 7},
        {"priority": 0},
        {"priority": 4},
        {"chunks": 64, "number": 9},
        {"chunks": 64, "offset": 65536},
        {"chunks": 65},
        {"size": 65536},
        {"size": 65537},
        {"size": 4 * 2**20 + 1, "length": 2**23},
        {"size": 2**20, "length": 2**22 + 1},
        {"size": 1, "length": 65},
        {"size": 1, "length": 2**32 - 1},
        {"size": 1, "length": 2, "number": 2**32 - 1},
        {"size": 1, "length": 2, "offset": 2**63 - 2},
        {"size": 1024, "length": 2048, "chunks": 33},
        {"size": 1024, "length": 2048, "chunks": 2},
    ],
)
def test_get_out_of_range_is_refused(changes):
    for chunks in (1, 64):
        assert len(receive(receiver(), stream(HELLO) + raw_get(chunks))) == 2
    with pytest.raises(errors.RemoteProtocolError, match="GET"):
        receive(receiver(), stream(HELLO) + raw_get(**changes))


@pytest.mark.parametrize(
    ("accepts", "message"),
    [
        (peer_wire.FROM_CLIENT, CHUNK),
        (peer_wire.FROM_CLIENT, REFUSE),
        (peer_wire.FROM_CLIENT, REFER),
        (peer_wire.FROM_SERVER, GET),
        (peer_wire.FROM_SERVER, peer_wire.Cancel((1,))),
        (peer_wire.FROM_SERVER, peer_wire.RaisePriority((1,))),
        (peer_wire.FROM_SERVER, ADVERTISE),
        (peer_wire.FROM_SERVER, KEEP),
        (peer_wire.FROM_SERVER, KEPT),
    ],
)
def test_message_from_the_wrong_side_is_refused(accepts, message):
    with pytest.raises(errors.RemoteProtocolError, match="wrong direction"):
        receive(receiver(accepts), stream(HELLO, message))


def get_with(**changes) -> peer_wire.Get:
    return peer_wire.Get((REQUEST._replace(**changes),))


@pytest.mark.parametrize(
    "message",
    [
        peer_wire.Get(()),
        get_with(length=0),
        get_with(offset=-1),
        get_with(request_id=1 << 32),
        get_with(proof=b"short"),
        get_with(timeout_ms=0),
        peer_wire.Get((REQUEST, REQUEST._replace(offset=0))),
        peer_wire.Get((REQUEST, REQUEST._replace(request_id=0))),
        peer_wire.Get((*BATCH.requests, REQUEST)),
        peer_wire.Get(tuple(REQUEST._replace(request_id=n, offset=n) for n in range(65))),
        peer_wire.Chunk(1, b""),
        peer_wire.Chunk(1, bytes(peer_wire.MAX_DATA_BYTES + 1)),
        HELLO._replace(host_id="no spaces"),
        peer_wire.Cancel((-1,)),
        peer_wire.Cancel(()),
        peer_wire.Cancel((1, 1)),
        peer_wire.Cancel(tuple(range(65))),
        peer_wire.RaisePriority((-1,)),
        peer_wire.RaisePriority(()),
        peer_wire.RaisePriority((1, 1)),
        peer_wire.RaisePriority(tuple(range(65))),
        peer_wire.Advertise(()),
        peer_wire.Advertise(announced.alone(0)),
        peer_wire.Advertise(announced.alone(2**64)),
        peer_wire.Advertise(announced.alone(*range(1, 514))),
        peer_wire.Advertise(announced.alone(1), 3),
        peer_wire.Advertise(((1, 0),), 16),
        peer_wire.Advertise(((1, 2),), 1),
        peer_wire.Advertise(((1, 1 << 16),), 16),
        peer_wire.Gone(()),
        peer_wire.Gone(announced.alone(0)),
        peer_wire.EvictionHint(()),
        peer_wire.EvictionHint(announced.alone(0)),
        peer_wire.EvictionHint(announced.alone(*range(1, 514))),
        peer_wire.ReplicaRequest(()),
        peer_wire.ReplicaRequest(2 * LEASES[:1]),
        peer_wire.ReplicaRequest((LEASES[0]._replace(lease_s=10**18),)),
        peer_wire.ReplicaRequest((LEASES[0]._replace(lease_s=-1),)),
        peer_wire.ReplicaReport(0, ()),
        peer_wire.ReplicaReport(2**64, SHARES),
        peer_wire.ReplicaReport(0, (SHARES[0]._replace(left_bytes=2**50),)),
        peer_wire.Refer(1, ()),
        peer_wire.Refer(1, ("a", "a")),
        peer_wire.Refer(1, tuple("abcde")),
        peer_wire.Refer(1, ("no spaces",)),
    ],
)
def test_message_out_of_range_is_not_sent(message):
    with pytest.raises(errors.LocalProtocolError, match=type(message).__name__):
        peer_wire.encode(message)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        b"\1" + bytes(7),
        chunk_body([(1, 0)]),
        chunk_body([(1, 5)])[:-1],
        chunk_body([(1, 5), (1, 5)]),
        bytes([65]) + bytes(600),
        chunk_body([(1, 2**20), (2, 1)]),
        chunk_body([(number, 1) for number in range(1, 66)]),
    ],
)
def test_invalid_encrypted_chunks_are_refused(body):
    ours, theirs = encryption_of("server"), encryption_of("server")
    to = receiver(peer_wire.FROM_SERVER, theirs)
    to.feed_bytes(stream(HELLO, encryption=ours))
    with pytest.raises(errors.RemoteProtocolError, match="peer-1"):
        to.feed_bytes(ours.encrypt([frame(3, body)]))
