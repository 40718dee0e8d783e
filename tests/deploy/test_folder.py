"""What holds for all of deploy/: a page for each part, no secrets, nothing that only exists on somebody's machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.deploy_kit import DEPLOY, documents

PARTS: Final = ("images", "compose", "kubernetes", "systemd", "grafana", "prometheus")

FILES: Final = [path for part in PARTS for path in sorted((DEPLOY / part).rglob("*")) if path.is_file()]

#: A value where a password, a token or a key is given; a file, a variable or a template is none.
SECRET: Final = re.compile(
    r"""(?:password|passwd|secret|token|api_?key)["']?\s*(?!:')[:=]\s*["']?(?![\s"'./$%{\[]|true|false)\S{6,}""",
    re.IGNORECASE,
)
KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^/\s:@$]+:[^@\s$]+@")


def texts() -> dict[str, str]:
    own = [path for path in FILES if "secrets" not in path.parent.name]
    return {str(path.relative_to(DEPLOY)): path.read_text(encoding="utf-8") for path in own}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_a_page_that_says_what_was_not_tried(part: str) -> None:
    page = (DEPLOY / part / "README.md").read_text(encoding="utf-8")
    assert "## What was checked, and what was not" in page
    assert f"]({part}/README.md)" in (DEPLOY / "README.md").read_text(encoding="utf-8")


def test_no_file_holds_a_secret() -> None:
    found = [
        f"{name}: {line.strip()}"
        for name, text in texts().items()
        for line in text.splitlines()
        if SECRET.search(line) or KEY.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("password: hunter22", True),
        ('GF_SECURITY_ADMIN_PASSWORD="letmein1"', True),
        ("COORD_CONTROL=postgresql://control:hunter22@db/control", True),
        ("-----BEGIN EC PRIVATE KEY-----", True),
        ("COORD_CONTROL=postgresql://control@db/control", False),
        ("COORD_CONTROL_PASSWORD_FILE: /run/secrets/control_password", False),
        ("password:", False),
        ("CREATE ROLE control LOGIN PASSWORD :'password';", False),
    ],
)
def test_the_search_for_secrets_finds_them_and_only_them(line: str, found: bool) -> None:
    assert bool(SECRET.search(line) or KEY.search(line)) is found


def test_every_yaml_file_can_be_read() -> None:
    yaml_files = [path for path in FILES if path.suffix in (".yaml", ".yml")]
    assert yaml_files
    assert all(documents(path) for path in yaml_files)


@pytest.mark.parametrize("path", [path for path in FILES if not path.suffix], ids=lambda path: path.name)
def test_scripts_can_be_run(path: Path) -> None:
    if path.read_text(encoding="utf-8").startswith("#!"):
        assert path.stat().st_mode & 0o111 == 0o111
    else:
        assert path.name == "Dockerfile"
