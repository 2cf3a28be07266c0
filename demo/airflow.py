"""A local Airflow of its own: SQLite, LocalExecutor, one admin, nothing shared with any other."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from cairn.errors import CairnError
from demo.processes import end

COMPONENTS = ("api-server", "scheduler", "dag-processor")
FINAL_STATES = ("success", "failed")
_POLL_S = 0.2
_STOP_S = 10


class AirflowFailedError(CairnError):
    """The local Airflow, or a Dag run in it, did not do what it should; says where the logs are."""


class LocalAirflow:
    """Airflow in `home`, its UI and API on `http://localhost:<port>`, user `admin`.

    `variables` are added to the environment of its processes. With `scheduled`, Dags run by their
    schedules (the newest slot that has passed at once) and may be deferred, else only when they are
    triggered. Every process that it starts is in a session of its own, and none is left after
    `stop`.
    """

    def __init__(
        self,
        home: Path,
        *,
        dags: Path,
        port: int,
        scheduled: bool = False,
        variables: Mapping[str, str],
    ) -> None:
        self.home = home.absolute()
        self.url = f"http://localhost:{port}"
        self._dags = dags.absolute()
        self._port = port
        self._scheduled = scheduled
        self._variables = dict(variables)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._api = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    @property
    def password(self) -> str:
        """The admin's password; `migrate` makes it. The file is readable by this user only."""
        password: str = json.loads(self._password_file.read_text())["admin"]
        return password

    def migrate(self) -> None:
        """Writes the configuration, if there is none, and brings Airflow's database up to date."""
        self.home.mkdir(parents=True, exist_ok=True)
        if not self._password_file.exists():
            _write_private(
                self._password_file, json.dumps({"admin": secrets.token_urlsafe(16)}) + "\n"
            )
        _write_private(self.home / "airflow.cfg", self._configuration())
        log = self._log("migrate")
        with log.open("wb") as out:
            done = subprocess.run(
                [sys.executable, "-m", "airflow", "db", "migrate"],
                env=self._environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        if done.returncode != 0:
            raise AirflowFailedError(f"airflow db migrate failed:\n{_tail(log)}")

    def start(self) -> None:
        """Starts its processes; returns at once.

        Raises:
            AirflowFailedError: the port is taken.
        """
        self._check_port()
        # Tasks are deferred by Dags that people trigger; the demo has none of these.
        for name in (*COMPONENTS, *(["triggerer"] if self._scheduled else [])):
            command = [sys.executable, "-m", "airflow", name]
            if name == "api-server":
                command += ["--host", "127.0.0.1", "--port", str(self._port)]
            with self._log(name).open("ab") as out:
                self._processes[name] = subprocess.Popen(  # noqa: S603
                    command,
                    env=self._environment(),
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def wait_ready(self, dag_id: str, pools: Mapping[str, int], *, timeout_s: float) -> None:
        """Waits until the API answers and a Dag can be triggered, and creates pools by slots.

        Raises:
            AirflowFailedError: a process ended, the Dag cannot be imported, or time is up.
        """
        deadline = time.monotonic() + timeout_s
        self._wait("the API server", deadline, self._is_healthy)
        self._log_in()
        for name, slots in pools.items():
            self._put_pool(name, slots)
        self._wait(f"Dag {dag_id}", deadline, lambda: self._is_known(dag_id))

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Starts a Dag run with these params and returns its id."""
        body = {"logical_date": None, "conf": dict(conf)}
        run_id: str = self._call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"]
        return run_id

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout_s: float) -> dict[str, Any]:
        """Waits until a Dag run succeeds and returns the return values of its tasks by task id.

        A mapped task's value is a list, by map index.

        Raises:
            AirflowFailedError: the run failed or time is up; with each task's state and its errors.
        """
        run = f"/dags/{dag_id}/dagRuns/{run_id}"
        deadline = time.monotonic() + timeout_s
        state = ""
        while state not in FINAL_STATES and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self._check_alive()
            state = self._call("GET", run)["state"]
        if state != "success":
            raise AirflowFailedError(
                f"Dag run {run_id} of {dag_id} is {state or 'unknown'} ({timeout_s:g} s allowed):\n"
                f"{self._task_report(run)}"
            )
        return self._return_values(run)

    def stop(self) -> None:
        """Ends every process: SIGTERM, and SIGKILL for what is left after 10 s."""
        end(self._processes.values(), patience_s=_STOP_S)
        self._processes.clear()

    @property
    def _password_file(self) -> Path:
        return self.home / "passwords.json"

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _environment(self) -> dict[str, str]:
        """Returns this process's environment without settings meant for another Airflow."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_")}
        root = str(Path(__file__).resolve().parent.parent)
        paths = [root, *filter(None, [inherited.get("PYTHONPATH")])]
        return {
            **inherited,
            **self._variables,
            "AIRFLOW_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join(paths),
        }

    def _configuration(self) -> str:
        sections: dict[str, dict[str, object]] = {
            "core": {
                "dags_folder": self._dags,
                "load_examples": False,
                "executor": "LocalExecutor",
                "parallelism": 2,
                "dags_are_paused_at_creation": False,
                "simple_auth_manager_users": "admin:admin",
                "simple_auth_manager_passwords_file": self._password_file,
                "execution_api_server_url": f"{self.url}/execution/",
            },
            "database": {"sql_alchemy_conn": f"sqlite:///{self.home / 'airflow.db'}"},
            "api": {"base_url": self.url, "secret_key": secrets.token_urlsafe(32), "workers": 1},
            "api_auth": {"jwt_secret": secrets.token_urlsafe(64)},
            "scheduler": {
                "scheduler_idle_sleep_time": 0.2,
                "use_job_schedule": self._scheduled,
            },
            "dag_processor": {"parsing_processes": 1, "refresh_interval": 30},
            "logging": {"base_log_folder": self.home / "logs"},
        }
        return "".join(
            f"[{section}]\n" + "".join(f"{k} = {_escaped(v)}\n" for k, v in values.items()) + "\n"
            for section, values in sections.items()
        )

    def _wait(self, what: str, deadline: float, is_there: Callable[[], bool]) -> None:
        while not is_there():
            self._check_alive()
            if time.monotonic() > deadline:
                raise AirflowFailedError(f"{what} is not there in time. Logs: {self.home}/*.log")
            time.sleep(_POLL_S)

    def _check_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self._port))
            except OSError as error:
                raise AirflowFailedError(
                    f"port {self._port} for Airflow: {error.strerror}. End what uses it, or "
                    "choose another port"
                ) from error

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise AirflowFailedError(
                    f"airflow {name} ended with exit code {process.returncode}:\n"
                    f"{_tail(self._log(name))}"
                )

    def _is_healthy(self) -> bool:
        try:
            response = self._api.get("/api/v2/monitor/health")
        except httpx.TransportError:
            return False
        return response.status_code == httpx.codes.OK

    def _is_known(self, dag_id: str) -> bool:
        errors = self._call("GET", "/importErrors")["import_errors"]
        if errors:
            raise AirflowFailedError(f"a Dag cannot be imported:\n{errors[0]['stack_trace']}")
        return self._api.get(f"/api/v2/dags/{dag_id}").status_code == httpx.codes.OK

    def _log_in(self) -> None:
        login = {"username": "admin", "password": self.password}
        token = self._api.post("/auth/token", json=login).raise_for_status().json()["access_token"]
        self._api.headers["Authorization"] = f"Bearer {token}"

    def _put_pool(self, name: str, slots: int) -> None:
        """Does what `airflow pools set` does, without the seconds that a new process takes."""
        body = {"name": name, "slots": slots, "description": "", "include_deferred": False}
        if self._api.get(f"/api/v2/pools/{name}").status_code == httpx.codes.OK:
            self._call("PATCH", f"/pools/{name}", {"pool": name, "slots": slots})
        else:
            self._call("POST", "/pools", body)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
        response = self._api.request(method, f"/api/v2{path}", json=body)
        if response.is_error:
            raise AirflowFailedError(
                f"Airflow answered {response.status_code} to {method} {path}: {response.text}"
            )
        return response.json()

    def _return_values(self, run: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for task in self._call("GET", f"{run}/taskInstances")["task_instances"]:
            if task["state"] != "success":
                continue  # skipped, such as the mapped task of an empty list
            name, index = task["task_id"], task["map_index"]
            entry = f"{run}/taskInstances/{name}/xcomEntries/return_value?map_index={index}"
            value = self._call("GET", f"{entry}&deserialize=true")["value"]
            if index < 0:
                values[name] = value
            else:
                values.setdefault(name, []).append(value)
        return values

    def _task_report(self, run: str) -> str:
        lines = []
        for task in self._call("GET", f"{run}/taskInstances")["task_instances"]:
            name, index, number = task["task_id"], task["map_index"], task["try_number"]
            lines.append(f"{name}[{index}] try {number}: {task['state']}")
            if task["state"] != "success" and number:
                path = f"{run}/taskInstances/{name}/logs/{number}?map_index={index}"
                lines += _errors(self._call("GET", path)["content"])
        return "\n".join(lines)


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _escaped(value: object) -> str:
    return str(value).replace("%", "%%")


def _errors(events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the errors in a task's log, each with the exceptions that led to it."""
    for event in events:
        if event.get("level") in ("error", "critical"):
            yield f"    {event['event']}"
            for cause in event.get("error_detail", []):
                yield f"        {cause['exc_type']}: {cause['exc_value']}"


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
