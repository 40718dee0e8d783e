"""``coordctl ui`` itself: where it listens, and what keeps it from serving."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

import coord_control.ui
from coord_control.errors import EndpointNotBound, PageSettingsInvalid
from coord_control.exit_codes import ExitCode
from coord_control.ui.server import address_of, bound
from tests.cli_kit import invoke


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "jinja2"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    # The packages that are imported anew below replace this one in its parent, too.
    monkeypatch.setattr(coord_control, "ui", coord_control.ui)
    for name in [name for name in sys.modules if name.startswith(("coord_control.ui", f"{package}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    result = invoke(tmp_path, "ui", "--listen", "nowhere")  # not even if it could
    assert result.exit_code == ExitCode.CONFIG
    assert f"needs the package {package}" in result.output
    assert "pip install 'coord-control[ui]'" in result.output


def test_a_token_file_without_buttons_is_a_mistake(tmp_path: Path) -> None:
    result = invoke(tmp_path, "ui", "--token-file", "token")
    assert result.exit_code == ExitCode.CONFIG
    assert "--actions" in result.output


def test_an_address_in_use_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = invoke(tmp_path, "ui", "--listen", f"127.0.0.1:{other.getsockname()[1]}")
    assert result.exit_code == ExitCode.TEMPORARY  # whoever has it may be about to end
    assert "with --listen" in result.output
    assert result.output.count("127.0.0.1") == 1


@pytest.mark.parametrize("address", ["", "8765", "host:x", "127.0.0.1:70000"])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(PageSettingsInvalid, match=r"127\.0\.0\.1:8765"):
        bound(address)


def test_where_it_listens() -> None:
    for address in ("127.0.0.1:0", ":0"):
        with bound(address) as here:
            assert address_of(here) == f"http://127.0.0.1:{here.getsockname()[1]}/"


def test_an_address_of_the_sixth_version_has_brackets() -> None:
    try:
        listener = bound("[::1]:0")
    except EndpointNotBound:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert address_of(listener).startswith("http://[::1]:")
