import threading, time
from concurrent import futures
from tests.fakes import hosts, http_server
from tests.functional import test_agent_many_images as many
pytestmark = hosts.needs_fuse
def test_par(images, start):
    added = many.add_images(images, 16)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    m = threading.Barrier(16)
    with http_server.serve(files) as server, futures.ThreadPoolExecutor(16) as readers:
        agent = start(life_s=many.LIFE_S, **hosts.http_options(server.url))
        server.always = http_server.slow(0.5)
        t0=time.monotonic()
        def st(i):
            m.wait()
            agent.image_path(i).stat()
            return round(time.monotonic()-t0,2)
        print("TIMES", sorted(readers.map(st, added)))
        def rd(i):
            agent.image_path(i).read_bytes()
            return round(time.monotonic()-t0,2)
        print("READS", sorted(readers.map(rd, added)))
        print([a.path if hasattr(a,'path') else a for a in server.asked][:3], len(server.asked))
