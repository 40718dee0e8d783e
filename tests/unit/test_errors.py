"""The tree of errors that users read is the tree of the classes, and every error can be imported from one place."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

from coord_control import errors


def drawn() -> Iterator[tuple[str, str]]:
    """Each name of the docstring's tree with the one that it hangs from; names end where a description begins."""
    above = {-4: "Exception"}
    depth = 0
    for line in (errors.__doc__ or "").splitlines()[2:]:
        item = re.fullmatch(r"(?P<indent> *)(?P<dash>- )?(?P<names>\w+(?:, \w+)*),?(?:   .*)?", line)
        assert item is not None, line
        if item["dash"]:
            depth = len(item["indent"])
        for name in item["names"].split(", "):
            yield name, above[depth - 4]
            above[depth] = name


def declared() -> Iterator[tuple[str, str]]:
    """Each public class of the modules, with the nearest public one that it extends."""
    for module in pkgutil.iter_modules(errors.__path__, "coord_control.errors."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == module.name:
                if not name.startswith("_"):
                    yield name, next(each.__name__ for each in value.__mro__[1:] if not each.__name__.startswith("_"))


def test_the_tree_of_the_docstring_is_that_of_the_classes() -> None:
    tree = list(drawn())
    assert len(dict(tree)) == len(tree), "a name stands twice in it"
    assert sorted(tree) == sorted(declared())


def test_every_error_can_be_imported_from_the_package() -> None:
    assert sorted(errors.__all__) == sorted(["Fault", *dict(declared())])
    assert all(hasattr(errors, name) for name in errors.__all__)
