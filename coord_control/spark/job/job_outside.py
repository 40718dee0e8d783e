"""What a job shows outside its process: its control plane, its metrics, and the notice that it runs.

Threads: opened by the thread that makes the job, closed by the one that ends it.
"""

from __future__ import annotations

from coord_control.spark.job.agent_port import AgentPort
from coord_control.spark.job.control_plane import ControlPlane
from coord_control.spark.job.job_driver import JobDriver
from coord_control.spark.job.job_metrics import JobMetrics, MeasuredParts
from coord_control.spark.process import start_notice

__all__ = ["JobOutside"]


class JobOutside:
    """Lets one job be seen and asked from outside.

    Args:
        plane: its connection to the control database; None without one.
        metrics: None if they are not served.
    """

    def __init__(
        self, driver: JobDriver, port: AgentPort, *, plane: ControlPlane | None, metrics: JobMetrics | None
    ) -> None:
        self._driver = driver
        self._port = port
        self._plane = plane
        self._metrics = metrics

    def open(self) -> None:
        """Begin, unless a newer driver has ended the job meanwhile.

        Raises:
            JobRootMismatch, JobStopRequested: the job must not run; the caller ends it.
        """
        driver = self._driver
        if self._metrics is not None:
            parts = MeasuredParts(
                job=driver,
                declared=driver.declared,
                runtime=driver.runtime,
                thread=driver.thread,
                recoveries=driver.recoveries,
            )
            self._metrics.start(parts, driver.news, self._port, self._plane)
        if self._plane is not None:
            driver.registered()
            self._plane.start(self._port)
        if driver.life.is_closed:  # what was begun here has begun too late for the end
            self.close()
        else:
            facts = self._port.facts
            control = None if self._plane is None else self._plane.address
            start_notice.announce(facts.name, facts.generation, control=control)

    def close(self) -> None:
        """Record the end of the job, and why it ended."""
        life = self._driver.life
        if self._plane is not None:
            error = self._driver.first_error() or life.program_error
            self._plane.close(self._driver.claim, error, life.lost_supervisor)
        if self._metrics is not None:
            self._metrics.close()
