"""Runs a load of every topic every ten minutes in Airflow 3, on a worker with access to the warehouse.

In Airflow 2 the imports are `from airflow import DAG` and `from airflow.operators.bash import BashOperator`.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    dag_id="headrace_load",
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    # One late load catches up with all missed ones.
    catchup=False,
    # Concurrent loads would yield and only occupy slots of the pool.
    max_active_runs=1,
):
    BashOperator(
        task_id="load",
        # Exit 1: a topic needs attention, which `headrace load status` names. Exit 2: the next load catches up.
        bash_command="/opt/headrace/.venv/bin/headrace load --config /etc/headrace/headrace.toml",
        retries=0,
        execution_timeout=timedelta(hours=6),
    )
