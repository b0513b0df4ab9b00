# SPDX-License-Identifier: Apache-2.0
"""Columns of command output, with texts that tenants or hosts may have chosen.

Tables show ``?`` for each control character; ``-f json`` and ``-f value`` have the original data.
"""

from collections.abc import Iterable
from typing import Any

from cliff import columns
from osc_lib.cli import format_columns
from osc_lib.command import command

from acstor_common.util import printable_text

_OF_LIBRARY = (format_columns.DictColumn, format_columns.ListColumn)


text, data = printable_text.text, printable_text.data


class TextColumn(columns.FormattableColumn[Any]):
    """Text of tenants or hosts, or a column of osc_lib with such text."""

    def human_readable(self) -> str:
        """Return the text on one line."""
        value = self._value
        is_column = isinstance(value, _OF_LIBRARY)
        return text(str(value.human_readable() if is_column else value))

    def machine_readable(self) -> Any:
        """Return the original data."""
        value = self._value
        return value.machine_readable() if isinstance(value, _OF_LIBRARY) else value


def mib(size_bytes: float) -> str:
    """Return a size in MiB, the unit of all tables.

    >>> mib(4 << 20), mib(0), mib(10000)
    ('4.0 MiB', '0.0 MiB', '0.0095 MiB')
    """
    count = size_bytes / (1 << 20)
    return f"{count:,.1f} MiB" if count >= 1 or not count else f"{count:.2g} MiB"


class SizeColumn(columns.FormattableColumn[Any]):
    """A size in bytes; other values are shown unchanged."""

    def human_readable(self) -> str:
        """Return the size in MiB."""
        return mib(self._value) if isinstance(self._value, int | float) else str(self._value)


class SizesColumn(columns.FormattableColumn[dict[str, int]]):
    """Sizes by name."""

    def human_readable(self) -> str:
        """Return the sizes in MiB."""
        return ", ".join(f"{text(name)} {mib(size)}" for name, size in sorted(self._value.items()))


class LinesColumn(columns.FormattableColumn[str]):
    """Text of several lines, such as PEM."""

    def human_readable(self) -> str:
        """Return the lines."""
        return printable_text.lines(self._value.strip())


def _shown(value: Any) -> Any:
    return TextColumn(value) if isinstance(value, (str, *_OF_LIBRARY)) else value


class Lister(command.Lister):
    """A lister that sanitizes text."""

    def produce_output(self, parsed_args: Any, column_names: Any, data: Iterable[Any]) -> int:
        """Print the rows."""
        rows = [[_shown(value) for value in row] for row in data]
        return int(super().produce_output(parsed_args, column_names, rows))


class ShowOne(command.ShowOne):
    """A ShowOne that sanitizes text."""

    def produce_output(self, parsed_args: Any, column_names: Any, data: Iterable[Any]) -> int:
        """Print the fields."""
        return int(
            super().produce_output(parsed_args, column_names, [_shown(value) for value in data])
        )
