# SPDX-License-Identifier: Apache-2.0
"""Calls functions when modules of Nova are imported; it imports only the standard library."""

import sys
from collections.abc import Callable
from collections.abc import Sequence
from importlib import abc
from importlib import machinery
from types import ModuleType


def when_imported(name: str, register: Callable[[ModuleType], None]) -> None:
    """Call ``register`` with a module, now or when it is imported."""
    module = sys.modules.get(name)
    if module is not None:
        register(module)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, register))


class _Finder(abc.MetaPathFinder):
    """Import hook that calls ``register`` after one module has been executed."""

    def __init__(self, name: str, register: Callable[[ModuleType], None]) -> None:
        self.name = name
        self._register = register

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((finder for finder in found if finder is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._register(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
