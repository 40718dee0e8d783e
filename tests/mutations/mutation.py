"""One bug that is put into the code on purpose; the lists are in :mod:`.run` and :mod:`.tested`."""

from __future__ import annotations
import __future__

import contextlib
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

__all__ = ["Mutation", "is_noticed"]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug: ``old`` stands once in the source of ``function`` and becomes ``new``."""

    name: str
    function: Callable[..., Any]
    old: str
    new: str

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Put the bug in, and take it out again.

        Raises:
            LookupError: the function has changed and ``old`` is not in it exactly once.
        """
        function = self.function
        assert isinstance(function, types.FunctionType)
        before = function.__code__
        function.__code__ = self._compiled(function)
        try:
            yield
        finally:
            function.__code__ = before

    def _compiled(self, function: types.FunctionType) -> types.CodeType:
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise LookupError(f"mutation {self.name!r}: {self.old!r} is not in {function.__qualname__} exactly once")
        flags = __future__.annotations.compiler_flag
        module = compile(source.replace(self.old, self.new), f"<{self.name}>", "exec", flags, dont_inherit=True)
        [code] = [constant for constant in module.co_consts if isinstance(constant, types.CodeType)]
        return code


def is_noticed(bug: Mutation, rules: Iterable[Callable[[], None]]) -> bool:
    """Whether any of these rules fails with the bug."""
    with bug.applied():
        for rule in rules:
            try:
                rule()
            except (Exception, pytest.fail.Exception):
                return True
    return False
