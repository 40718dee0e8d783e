"""Four questions to Dagster's GraphQL API, as its own pages ask them.

Threads: any; every question waits for its answer, for a bounded time.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["DagsterApi", "DagsterDoesNotAnswer", "DagsterRefuses", "Location"]

_ANSWER_SECONDS: Final = 30.0

_LOCATIONS: Final = """
{ workspaceOrError {
    ... on PythonError { message }
    ... on Workspace { locationEntries { name locationOrLoadError {
      ... on PythonError { message }
      ... on RepositoryLocation { repositories { name } } } } } } }
"""
_LAUNCH: Final = """
mutation($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on PythonError { message } } }
"""
_STATUS: Final = "query($id: ID!) { runOrError(runId: $id) { __typename ... on Run { status } } }"
_MATERIALIZATIONS: Final = """
query($path: [String!]!) { assetOrError(assetKey: {path: $path}) { __typename ... on Asset {
    assetMaterializations(limit: 20) { runId metadataEntries {
      label
      ... on PathMetadataEntry { path }
      ... on TextMetadataEntry { text }
      ... on FloatMetadataEntry { floatValue }
      ... on IntMetadataEntry { intRepr } } } } } }
"""


class DagsterDoesNotAnswer(Exception):
    """Dagster is not running (yet), or its answer is invalid."""


class DagsterRefuses(Exception):
    """Dagster refused the request; the message names the reason."""


@dataclass(frozen=True, slots=True)
class Location:
    """A loaded code location."""

    name: str
    repository: str


class DagsterApi:
    """The API of the webserver at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url

    def location(self) -> Location | None:
        """Return the only code location, or None while it is being loaded.

        Raises:
            DagsterDoesNotAnswer: see there.
            DagsterRefuses: it cannot be loaded.
        """
        workspace = self._ask(_LOCATIONS)["workspaceOrError"]
        if "message" in workspace:
            raise DagsterRefuses(workspace["message"])
        for entry in workspace["locationEntries"]:
            loaded = entry["locationOrLoadError"]
            if loaded and "message" in loaded:
                raise DagsterRefuses(loaded["message"])
            if loaded:
                return Location(entry["name"], loaded["repositories"][0]["name"])
        return None

    def materialize(self, location: Location, asset: Sequence[str], config: Mapping[str, Any]) -> str:
        """Launch a run that materializes an asset, and return its id.

        Raises:
            DagsterDoesNotAnswer, DagsterRefuses: see there.
        """
        selector = {
            "repositoryLocationName": location.name,
            "repositoryName": location.repository,
            "pipelineName": "__ASSET_JOB",
            "assetSelection": [{"path": list(asset)}],
            "assetCheckSelection": [],
        }
        answer = self._ask(_LAUNCH, params={"selector": selector, "runConfigData": config})["launchPipelineExecution"]
        if "run" not in answer:
            reasons = [answer.get("message"), *(error["message"] for error in answer.get("errors", ()))]
            raise DagsterRefuses("; ".join(filter(None, reasons)) or answer["__typename"])
        return str(answer["run"]["runId"])

    def run_status(self, run: str) -> str:
        """Return the status of a run: ``QUEUED``, ``STARTED``, ``SUCCESS``, ``FAILURE`` and so on.

        Raises:
            DagsterDoesNotAnswer, DagsterRefuses: see there.
        """
        answer = self._ask(_STATUS, id=run)["runOrError"]
        if "status" not in answer:
            raise DagsterRefuses(f"{answer['__typename']}: run {run}")
        return str(answer["status"])

    def metadata(self, asset: Sequence[str], run: str) -> dict[str, Any]:
        """Return the plain metadata of the materialization of an asset by a run; empty if there is none.

        Raises:
            DagsterDoesNotAnswer: see there.
        """
        found = self._ask(_MATERIALIZATIONS, path=list(asset))["assetOrError"]
        for made in found.get("assetMaterializations", ()):
            if made["runId"] == run:
                return {entry["label"]: value for entry in made["metadataEntries"] for value in _plain(entry)}
        return {}

    def _ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self._url}/graphql", body, {"Content-Type": "application/json"})
        # Not through a proxy, because it is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_ANSWER_SECONDS) as response:
                answer: dict[str, Any] = json.load(response)
        except (OSError, ValueError) as error:
            raise DagsterDoesNotAnswer(f"{self._url} does not answer: {error}") from error
        if answer.get("errors") or not answer.get("data"):
            raise DagsterDoesNotAnswer(f"{self._url} answers: {answer.get('errors')}")
        data: dict[str, Any] = answer["data"]
        return data


def _plain(entry: dict[str, Any]) -> list[Any]:
    if "intRepr" in entry:
        return [int(entry["intRepr"])]
    return [entry[name] for name in ("path", "text", "floatValue") if name in entry]
