# SPDX-License-Identifier: Apache-2.0
"""S2: Boot images (YOLO)."""

from tests.papers import experiment

PAPER = experiment.Paper(
    key="S2",
    name="Boot images (YOLO)",
    cite=(
        "T. L. Nguyen, R. Nou, A. Lebre: *YOLO: Speeding up VM Boot Time by reducing I/O "
        "operations*, 2019."
    ),
    about="",
    experiments=(),
)
