"""The GraphQL of ``tests/dagster_dev_kit.py``: what Dagster's pages ask as well."""

from __future__ import annotations

from typing import Final

_METADATA: Final = """
fragment value on MetadataEntry {
    label
    ... on IntMetadataEntry { intRepr }
    ... on FloatMetadataEntry { floatValue }
    ... on TextMetadataEntry { text }
    ... on PathMetadataEntry { path }
    ... on BoolMetadataEntry { boolValue }
    ... on MarkdownMetadataEntry { mdStr }
    ... on JsonMetadataEntry { jsonString }
    ... on TimestampMetadataEntry { timestamp }
    ... on TableMetadataEntry { table { records } }
}
"""
_RUN: Final = "fragment facts on Run { runId status tags { key value } creationTime startTime endTime }"
_LAUNCHED: Final = """{
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on PythonError { message }
}"""

LOCATIONS: Final = """{ work: workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
    __typename ... on PythonError { message causes { message } }
} } } } }"""
LAUNCH: Final = f"mutation($params: ExecutionParams!) {{ made: launchRun(executionParams: $params) {_LAUNCHED} }}"
REEXECUTE: Final = f"""mutation($params: ReexecutionParams!) {{
    made: launchRunReexecution(reexecutionParams: $params) {_LAUNCHED}
}}"""
TERMINATE: Final = """mutation($id: String!) {
    ended: terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) { __typename }
}"""
RUN: Final = "query($id: ID!) { run: runOrError(runId: $id) { ... on Run { ...facts } } }" + _RUN
RUNS: Final = "{ runs: runsOrError { ... on Runs { results { ...facts } } } }" + _RUN
MESSAGES: Final = """query($id: ID!) { logs: logsForRun(runId: $id) { ... on EventConnection { events {
    ... on MessageEvent { message }
    ... on ErrorEvent { error { message causes { message } } }
    ... on ExecutionStepFailureEvent { failureMetadata { description } }
} } } }"""
ENTRIES: Final = (
    """query($key: AssetKeyInput!) { node: assetNodeOrError(assetKey: $key) { __typename ... on AssetNode {
    assetMaterializations(limit: 1000) { runId timestamp metadataEntries { ...value } }
    assetObservations(limit: 1000) { runId timestamp metadataEntries { ...value } }
} } }"""
    + _METADATA
)
CHECKS: Final = (
    """query($key: AssetKeyInput!) { node: assetNodeOrError(assetKey: $key) { ... on AssetNode {
    found: assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization {
        status evaluation { success description metadataEntries { ...value } }
    } } } }
} } }"""
    + _METADATA
)
TICKS: Final = """query($of: InstigationSelector!) { state: instigationStateOrError(instigationSelector: $of) {
    __typename ... on InstigationState {
        status ticks(limit: 100) { status timestamp skipReason runIds cursor error { message } }
    }
} }"""
