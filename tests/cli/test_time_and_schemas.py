"""What the command shows of TTL, timers, watermarks, and of schemas that changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from cairn.cli import main
from cairn.state.entries import FIRST_MS, LAST_MS
from cairn.state.times import TimeMode
from cairn.state.view import PUT
from tests.cli.conftest import Outcome
from tests.cli.stateful_job import (
    LIST,
    STATES,
    VALUE,
    WITH_TTL,
    StatefulJob,
    drop,
    encoded,
    prefix,
    put_count,
    put_list,
    put_session,
    register_timers,
    struct,
)

Cairn = Callable[..., Outcome]
KEY = {"user_id": 1, "region": "eu"}


def test_value_with_ttl_comes_with_the_time_at_which_it_expires(
    cairn: Cairn, job: StatefulJob
) -> None:
    job.register(WITH_TTL).batch(put_count(1, "eu", 7), *put_session(1, "eu", "new", 1_000))
    assert cairn("state", "clicks", "--json").json == [
        {"state": "count", "key": KEY, "value": {"n": 7}},
        {
            "state": "session",
            "key": KEY,
            "value": {"word": "new"},
            "expires": "1970-01-01T00:01:01.000Z",
        },
    ]
    assert "1970-01-01T00:01:01.000Z" in cairn("state", "clicks").out


def test_value_that_has_expired_is_shown_until_it_is_removed_and_the_help_says_so(
    cairn: Cairn, job: StatefulJob, capfd: pytest.CaptureFixture[str]
) -> None:
    job.register(WITH_TTL).batch(*put_session(1, "eu", "old", 0))
    job.batch(put_count(2, "eu", 1))
    [shown] = cairn("state", "clicks", "--json", "--name", "session").json
    assert shown["value"] == {"word": "old"}
    with pytest.raises(SystemExit):
        main(["state", "--help"])
    assert "is shown until a batch removes it" in " ".join(capfd.readouterr().out.split())


def test_timers_are_listed_by_key_in_order_and_are_no_state(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 7), *register_timers(1, "eu", 61_000, -5, 1_000))
    assert [row["state"] for row in cairn("state", "clicks", "--json").json] == ["count"]
    assert cairn("state", "clicks", "--timers", "--json").json == [
        {"key": KEY, "expires": "1969-12-31T23:59:59.995Z"},
        {"key": KEY, "expires": "1970-01-01T00:00:01.000Z"},
        {"key": KEY, "expires": "1970-01-01T00:01:01.000Z"},
    ]
    assert "1970-01-01T00:01:01.000Z" in cairn("state", "clicks", "--timers").out


def test_timers_of_one_key_and_of_an_older_checkpoint(cairn: Cairn, job: StatefulJob) -> None:
    first = job.batch(*register_timers(1, "eu", 0), *register_timers(2, "eu", 1))
    job.batch(*register_timers(1, "eu", 2))
    of_key = cairn("state", "clicks", "--timers", "--json", "--key", '[1, "eu"]').json
    assert [row["expires"][-5:] for row in of_key] == [".000Z", ".002Z"]
    of_first = cairn("state", "clicks", "--timers", "--json", "--checkpoint", str(first)).json
    assert [row["key"]["user_id"] for row in of_first] == [1, 2]


def test_time_outside_of_the_calendar_is_shown_in_milliseconds(
    cairn: Cairn, job: StatefulJob
) -> None:
    job.batch(*register_timers(1, "eu", FIRST_MS, LAST_MS))
    shown = cairn("state", "clicks", "--timers", "--json").json
    assert [row["expires"] for row in shown] == [f"{FIRST_MS} ms", f"{LAST_MS} ms"]


def test_dropped_variable_is_not_shown_and_its_name_may_be_used_again(
    cairn: Cairn, job: StatefulJob
) -> None:
    job.batch(put_count(1, "eu", 7), *put_list(1, "eu", "a"))
    kept = [state for state in STATES if state.name != "seen"]
    job.register(kept, deleted=["seen"]).batch()
    count = {"state": "count", "key": KEY, "value": {"n": 7}}
    assert cairn("state", "clicks", "--json").json == [count]
    unknown = cairn("state", "clicks", "--name", "seen")
    assert "there are: by_word, count" in unknown.err
    job.register(STATES).batch(*drop(LIST))
    assert cairn("state", "clicks", "--json").json == [count]
    assert cairn("state", "clicks", "--name", "seen", "--json").json == []


def test_values_from_before_and_after_a_change_of_the_schema_are_read(
    cairn: Cairn, job: StatefulJob
) -> None:
    job.batch(put_count(1, "eu", 7))
    count: Any = dataclasses.replace(STATES[0], value_schema=struct(label="string", n="long"))
    job.register([count, *STATES[1:]])
    in_layout = encoded(struct(n="long", label="string"), 8, "new")
    job.batch((PUT, prefix(VALUE, 2, "eu"), in_layout))
    old, new = cairn("state", "clicks", "--json").json
    assert old["value"] == {"n": 7, "label": None}
    assert new["value"] == {"n": 8, "label": "new"}


def test_checkpoints_show_watermark_and_late_rows(cairn: Cairn, job: StatefulJob) -> None:
    job.name = "events"
    job.register(time_mode=TimeMode.EVENT_TIME, delays_ms=[500])
    job.batch(put_count(1, "eu", 1), max_event_ms=(60_500,))
    job.batch(put_count(1, "eu", 1), late_rows=2)
    second, first = cairn("checkpoints", "events", "--json").json
    assert (first["watermark"], first["late_rows"]) == (None, 0)
    assert second["watermark"].startswith("1970-01-01T00:01:00")
    assert (second["late_rows"], second["input_rows"]) == (4, 5)
    lines = cairn("checkpoints", "events").out.splitlines()
    assert "late" in lines[0]
    assert "watermark (UTC)" in lines[0]
    assert "1970-01-01 00:01:00" in lines[1]
    assert "1970-01-01" not in lines[2]
