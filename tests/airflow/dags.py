"""The DAGs of the tests, which Airflow reads from a copy of this file.

The connection `named` exists; without a name it is `COORD_CONTROL` that counts.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from coord_control.airflow import (
    CheckpointFreshnessSensor,
    CheckpointOperator,
    SavepointOperator,
    SendEventOperator,
    SetLiveOperator,
    savepoint_asset,
)

JOB = "flights"
AT_ONCE: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=0)}

with DAG("saving", schedule=None, catchup=False):
    SavepointOperator(
        task_id="save",
        job="{{ dag_run.conf.get('job', 'flights') }}",
        savepoint_label="{{ dag_run.conf.get('label', '') }}",
        outlets=[savepoint_asset(JOB)],
        **AT_ONCE,
    )

with DAG("saving_in_the_worker", schedule=None, catchup=False):
    SavepointOperator(task_id="save", job=JOB, conn_id="named", deferrable=False, **AT_ONCE)

with DAG("after_a_savepoint", schedule=[savepoint_asset(JOB)], catchup=False):
    CheckpointOperator(
        task_id="checkpoint",
        job=JOB,
        checkpoint_label="after-{{ dag_run.run_after | ts_nodash }}",
    )

with DAG("changing", schedule=None, catchup=False):
    (
        SetLiveOperator(task_id="set", job=JOB, conn_id="named", name="limits", fields={"minutes": 45})
        >> SendEventOperator(
            task_id="send",
            job=JOB,
            conn_id="named",
            operator="threshold",
            event_type="Threshold",
            payload='{"minutes": {{ 40 + 2 }}}',
        )
        >> SendEventOperator(
            task_id="send_nonsense", job=JOB, operator="threshold", event_type="Threshold", payload={}, **AT_ONCE
        )
    )

with DAG("watching", schedule=None, catchup=False):
    CheckpointFreshnessSensor(
        task_id="fresh", job=JOB, kind="savepoint", max_age=timedelta(hours=1), poke_interval=0.5, timeout=600
    )
    CheckpointFreshnessSensor(task_id="stale", job=JOB, max_age=0.001, poke_interval=0.5, timeout=2)
