"""What keeps the page from being served."""

from __future__ import annotations

from coord_control.errors.base import CoordControlError, Fault

__all__ = ["PagePackageMissing", "PageSettingsInvalid"]


class PagePackageMissing(CoordControlError):
    """The packages that serve pages are an extra, and are not installed."""

    fault = Fault.USER

    def __init__(self, package: str) -> None:
        self.package = package
        super().__init__(f'coordctl ui needs the package {package}: pip install "coord-control[ui]"')


class PageSettingsInvalid(CoordControlError):
    """The page cannot be served as it was asked for; the message says what to write instead."""

    fault = Fault.USER
