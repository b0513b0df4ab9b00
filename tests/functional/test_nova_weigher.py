# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler weighs hosts by cached images, and works without the service.

Each published release of Nova loads the weigher as nova-scheduler does.

"""

import json

import pytest

from acstor_common.wire import decision_messages
from tests.fakes import http_server
from tests.functional import test_nova_versions
from tests.lab import local
from tests.lab.openstack import installed

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-000000000001"
WEIGHERS = "nova.scheduler.weights.all_weighers,acstor_nova.weigher.ImageLocalityWeigher"
PROGRAM = """
import json, sys, time
{first}
from nova import config, objects
from nova.conf import CONF
config.parse_args(["nova-scheduler", "--config-file", sys.argv[1]])
objects.register_all()
from nova.scheduler import host_manager, weights
handler = weights.HostWeightHandler()
weighers = [one() for one in handler.get_matching_classes(CONF.filter_scheduler.weight_classes)]
CELL = "7d2c1f9e-5d6b-4a5c-9c61-0000000000ff"

def host(name, ram_mb, builds=0, aggregates=()):
    made = host_manager.HostState(name, name, CELL)
    made.free_ram_mb = made.total_usable_ram_mb = ram_mb
    made.num_io_ops, made.aggregates = builds, list(aggregates)
    made.vcpus_total, made.cpu_allocation_ratio, made.hypervisor_version = 8, 1.0, 1
    return made

def request(image_id, **fields):
    props = objects.ImageMetaProps()
    image = objects.ImageMeta(id=image_id, properties=props) if image_id else None
    given = dict(image=image, instance_group=None, is_bfv=False, numa_topology=None,
                 pci_requests=objects.InstancePCIRequests(requests=[]), requested_destination=None)
    return objects.RequestSpec(**{{**given, **fields}})

def order(spec, *hosts):
    began_s = time.monotonic()
    found = handler.get_weighed_objects(weighers, hosts, spec)
    took_s.append(time.monotonic() - began_s)
    return [one.obj.host for one in found]

took_s, image, images = [], sys.argv[2], {{}}
both = host("warm", 100), host("cold", 900)
off = objects.Aggregate(metadata={{"image_locality_weight_multiplier": "0"}})
ours = next(one for one in weighers if type(one).__module__ == "acstor_nova.weigher")
images["stock"] = order(request(None), *both)
for _ in range(100):  # a slow machine may not answer in time
    images["image"] = order(request(image), *both)
    raw = ours.weigh_objects([weights.WeighedHost(one, 0.0) for one in both], request(image))
    single = ours._weigh_object(both[0], request(image))
    if images["image"][0] == "warm" and raw[0] and single:
        break
    time.sleep(0.1)
images["volume"] = order(request(image, is_bfv=True), *both)
images["no image"] = order(request(None), *both)
images["busy"] = order(request(image), host("warm", 100, builds=50), both[1])
images["off"] = order(request(image), host("warm", 100, aggregates=[off]), both[1])
images["alone"] = order(request(image), both[0])
print(json.dumps({{"orders": images, "raw": raw, "slowest_s": max(took_s),
                  "range": [ours.minval, ours.maxval],
                  "single": single}}))
"""
EVENTLET = "import eventlet; eventlet.monkey_patch()"

needs_services = pytest.mark.skipif(
    not installed.is_ready(),
    reason=f"the services of OpenStack are not installed: {installed.REMEDY}",
)
released = test_nova_versions.released


def table(**shares):
    found = decision_messages.ImageLocality(
        IMAGE, [decision_messages.HostLocality(host, *given) for host, given in shares.items()]
    )
    return json.dumps(decision_messages.encode(found)).encode()


def weigh(nova, url, *, has_eventlet=False, python=""):
    """Let this Nova weigh a warm host and an emptier cold one; return the orders and the log.

    :param python: another than that of the services

    """
    conf_file = nova / "scheduler.conf"
    conf_file.write_text(
        f"[filter_scheduler]\nweight_classes = {WEIGHERS}\n[acstor]\ndecision_url = {url}\n"
        f"[service_user]\nauth_type = admin_token\ntoken = secret\nendpoint = {url}\n"
    )
    program = PROGRAM.format(first=EVENTLET if has_eventlet else "")
    argv = [python or installed.BIN / "python", "-W", "ignore", "-c", program, conf_file, IMAGE]
    return test_nova_versions.run_nova(nova, argv)


def check_preferred(found):
    """Check that this Nova prefers the warm host where it may."""
    assert found["orders"] == {
        "stock": ["cold", "warm"],
        "image": ["warm", "cold"],
        "volume": ["cold", "warm"],
        "no image": ["cold", "warm"],
        "busy": ["cold", "warm"],
        "off": ["cold", "warm"],
        "alone": ["warm"],
    }
    assert found["raw"] == [pytest.approx(0.9), 0.0]
    assert found["single"] == pytest.approx(0.9)
    assert found["range"] == [0, 1]  # so Nova does not stretch them


@needs_services
@pytest.mark.parametrize("has_eventlet", [False, True])
@pytest.mark.parametrize("version", test_nova_versions.RELEASES)
def test_release_prefers_the_host_that_caches_the_image(released, version, has_eventlet):
    with http_server.serve({f"v1/images/{IMAGE}/locality": table(warm=(1.0, 0.5, 0.0))}) as server:
        found, _ = weigh(released(version), server.url, has_eventlet=has_eventlet)
    check_preferred(found)


@needs_services
@pytest.mark.parametrize("has_eventlet", [False, True])
@pytest.mark.parametrize("version", [min(test_nova_versions.RELEASES), 34])
def test_release_weighs_as_stock_nova_while_the_service_is_down(released, version, has_eventlet):
    url = f"http://{local.LOOPBACK}:{local.unused_port()}"
    found, log = weigh(released(version), url, has_eventlet=has_eventlet)
    assert {*map(tuple, found["orders"].values())} == {("cold", "warm"), ("warm",)}
    assert found["orders"]["alone"] == ["warm"] and found["raw"] == [0.0, 0.0]
    assert "hosts are not weighed by the images that they have" in log and url in log
    assert found["slowest_s"] < 5  # bounds the machine, not the weigher
