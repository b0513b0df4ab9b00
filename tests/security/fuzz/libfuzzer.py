# SPDX-License-Identifier: Apache-2.0
"""One target under libFuzzer, which follows the code that inputs reach (the library atheris).

Each run needs its own process, which libFuzzer ends.  The first argument is the target's name, the
others are libFuzzer's.  Our own code is instrumented before it is imported.

"""

import random
import sys

import atheris

OURS = ["acstor_agent", "acstor_checkpoint", "acstor_common", "acstor_glance"]

with atheris.instrument_imports(include=OURS):
    from tests.security.fuzz import corpus
    from tests.security.fuzz import mutations
    from tests.security.fuzz import targets

MEASURED = 512
"""One input of so many is also measured for memory, which makes it many times slower."""


def main() -> None:
    target = targets.BY_NAME[sys.argv[1]]
    kept = corpus.inputs(target)
    count = 0

    def try_one(data: bytes) -> None:
        nonlocal count
        count += 1
        (target.try_measured if count % MEASURED == 0 else target.try_one)(data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.randrange(3):
            damaged = mutations.mutate(data, kept, rng)
        else:
            damaged = bytearray(atheris.Mutate(data, max_size))
        if rng.randrange(4):
            target.fix_checksums(damaged)
        return bytes(damaged[:max_size])

    # libFuzzer uses the mutator above for splices as well; its own would break every checksum.
    atheris.Setup([sys.argv[0], *sys.argv[2:]], try_one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
