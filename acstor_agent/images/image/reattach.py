# SPDX-License-Identifier: Apache-2.0
"""Reattaches images that guests have open after a worker's restart; reads wait for their maps."""

import itertools

import trio

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.engine.data_structures import negative_cache
from acstor_agent.images.image import mirrors
from acstor_agent.images.read import mirror
from acstor_agent.images.read import read_admission
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import backoff

RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 2.0  # first and longest pause between tries


class Reattach:
    """Finds mirrors of open images; fails reads after ``lost_after_s`` without a good map."""

    def __init__(
        self,
        images: mirrors.Mirrors,
        reads: read_admission.ReadAdmission,
        deadline_s: float,
        lost_after_s: float = 0.0,
    ) -> None:
        self._images, self._reads, self._deadline_s = images, reads, deadline_s
        self._absences = negative_cache.NegativeCache(lost_after_s)

    async def get_mirror(self, image_id: ids.ImageId, guest: requests.Stream) -> mirror.Mirror:
        """Return the mirror of an image.

        :raises errors.ChunkMissing: the source has no chunk map, for ``lost_after_s``
        :raises errors.ChunkMapFormatError: the source has a wrong map, for ``lost_after_s``
        :raises errors.DeadlineExceeded: the map did not arrive in time
        """
        found = self._images.get_nowait(image_id)
        if found is not None:
            return found
        why = ""
        with self._reads.track_request(guest), disk_io.use_stream(guest):
            with trio.move_on_after(self._deadline_s):
                for tries in itertools.count():
                    try:
                        found = await self._images.attach_image(image_id)
                    except (errors.ChunkRefused, errors.SourceUnreachable, OSError) as e:
                        why = str(e)
                    except (errors.ChunkMissing, errors.ChunkMapFormatError) as e:
                        if not self._absences.record_denial(image_id, trio.current_time()):
                            raise
                        why = str(e)
                    else:
                        self._absences.clear_denial(image_id)
                        return found
                    read_admission.note_wait(why)
                    await trio.sleep(backoff.pause_s(tries, RETRY_FIRST_S, RETRY_LONGEST_S))
        raise errors.DeadlineExceeded(f"the chunk map of image {image_id}", self._deadline_s, why)
