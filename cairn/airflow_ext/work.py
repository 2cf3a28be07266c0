"""What the Dags do for one job, by action: who plans it, and who does all of it in one go.

`params` are those of the Dag run. Heavy imports wait until a task runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.catalog.catalog import Catalog
    from cairn.maintenance.compaction_plan import CompactionOptions
    from cairn.maintenance.plans import Plan

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An action as the Dags do it.

    `whole` plans and applies at once, or with the param `dry_run` says what it would do, and
    returns its report as JSON values. `goes_on` says that it is to be done after a plan was
    applied, too: one plan does not hold all that there may be.
    """

    plan: Callable[[Catalog, str, Params], Plan]
    whole: Callable[[Catalog, str, Params], dict[str, Any]]
    goes_on: bool = False


def _plan_cleanup(catalog: Catalog, job: str, _: Params) -> Plan:
    from cairn.maintenance.cleanup import plan_cleanup  # noqa: PLC0415

    return plan_cleanup(catalog, job)


def _clean(catalog: Catalog, job: str, params: Params) -> dict[str, Any]:
    from cairn.maintenance.cleanup import cleanup_job  # noqa: PLC0415

    return _json(cleanup_job(catalog, job, dry_run=params["dry_run"]))


def _plan_sweep(catalog: Catalog, job: str, params: Params) -> Plan:
    from cairn.maintenance.sweep import plan_sweep  # noqa: PLC0415

    return plan_sweep(catalog, job, quarantine_ms=_quarantine_ms(params))


def _sweep(catalog: Catalog, job: str, params: Params) -> dict[str, Any]:
    from cairn.maintenance.sweep import sweep_job  # noqa: PLC0415

    report = sweep_job(
        catalog, job, dry_run=params["dry_run"], quarantine_ms=_quarantine_ms(params)
    )
    return _json(report)


def _plan_folds(catalog: Catalog, job: str, _: Params) -> Plan:
    from cairn.maintenance.materialization import plan_folds  # noqa: PLC0415

    return plan_folds(catalog, job)


def _materialize(catalog: Catalog, job: str, params: Params) -> dict[str, Any]:
    from cairn.maintenance.materialization import materialize_job  # noqa: PLC0415

    return _json(materialize_job(catalog, job, dry_run=params["dry_run"]))


def _plan_compaction(catalog: Catalog, job: str, params: Params) -> Plan:
    from cairn.maintenance.compaction import plan_action  # noqa: PLC0415

    return plan_action(catalog, job, _compaction_options(params))


def _compact(catalog: Catalog, job: str, params: Params) -> dict[str, Any]:
    from cairn.maintenance.compaction import compact_job  # noqa: PLC0415

    report = compact_job(catalog, job, _compaction_options(params), dry_run=params["dry_run"])
    return {"job": job, **in_numbers(report.plan.to_json()), **_json(report.done)}


def _plan_scrub(catalog: Catalog, job: str, params: Params) -> Plan:
    from cairn.maintenance.recorded_work import plan_scrub  # noqa: PLC0415

    return plan_scrub(catalog, job, **_scrub_options(params))


def _scrub(catalog: Catalog, job: str, params: Params) -> dict[str, Any]:
    from cairn.maintenance.recorded_work import scrub_and_record  # noqa: PLC0415

    return _json(
        scrub_and_record(catalog, job, dry_run=params["dry_run"], **_scrub_options(params))
    )


def _plan_housekeeping(catalog: Catalog, job: str, _: Params) -> Plan:
    from cairn.maintenance.recorded_work import plan_housekeeping  # noqa: PLC0415

    return plan_housekeeping(catalog, job)


def _housekeep(catalog: Catalog, job: str, params: Params) -> dict[str, Any]:
    from cairn.maintenance.recorded_work import housekeep_and_record  # noqa: PLC0415

    return _json(housekeep_and_record(catalog, job, dry_run=params["dry_run"]))


WORK: Mapping[str, Work] = {
    "subsumption": Work(plan=_plan_cleanup, whole=_clean, goes_on=True),
    "orphan_sweep": Work(plan=_plan_sweep, whole=_sweep),
    "materialization": Work(plan=_plan_folds, whole=_materialize),
    "compaction": Work(plan=_plan_compaction, whole=_compact),
    "scrub": Work(plan=_plan_scrub, whole=_scrub),
    "housekeeping": Work(plan=_plan_housekeeping, whole=_housekeep),
}
"""By the name of a `metastore.enums.MaintenanceAction`."""


def in_numbers(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a plan's content with the number of entries in place of each list."""

    def short(one: Any) -> Any:  # noqa: ANN401 - a JSON value
        if isinstance(one, Mapping):
            return in_numbers(one)
        return len(one) if isinstance(one, list) else one

    return {name: short(one) for name, one in content.items()}


def _quarantine_ms(params: Params) -> int:
    return int(params["quarantine_days"]) * 86_400_000


def _compaction_options(params: Params) -> CompactionOptions:
    from cairn.maintenance.compaction_plan import CompactionOptions  # noqa: PLC0415

    return CompactionOptions(
        start_amplification=params["start_amplification"],
        stop_amplification=params["stop_amplification"],
        input_bytes=params["input_mb"] << 20,
        drain_parallelism=params["drain_parallelism"],
    )


def _scrub_options(params: Params) -> dict[str, Any]:
    return {
        "sample_percent": None if params["whole"] else params["sample_percent"],
        "max_bytes_per_s": params["max_bytes_per_s"],
    }


def _json(report: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass; None: nothing was done
    plain = {} if report is None else asdict(report)
    return {
        name: one.isoformat() if isinstance(one, datetime) else one for name, one in plain.items()
    }
