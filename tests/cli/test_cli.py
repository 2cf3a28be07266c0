from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from cairn.catalog.migrate import head_revision
from cairn.cli import main
from cairn.printable import is_printable
from tests.cli.conftest import Outcome
from tests.cli.stateful_job import (
    StatefulJob,
    clear_list,
    delete_count,
    put_count,
    put_list,
    put_map,
)

Cairn = Callable[..., Outcome]
ROOT = Path(__file__).parents[2]
COMMANDS = [
    ["db", "migrate"],
    ["jobs"],
    ["checkpoints", "clicks"],
    ["files", "clicks"],
    ["directories", "clicks"],
    ["state", "clicks"],
    ["cleanup"],
    ["savepoint", "clicks"],
    ["pin", "clicks"],
    ["unpin", "clicks", "1"],
    ["pins", "clicks"],
    ["metrics"],
    ["metastore", "rebuild", "/nowhere"],
]


def key(user_id: int, region: str = "eu") -> dict[str, object]:
    return {"user_id": user_id, "region": region}


def count(user_id: int, n: int, region: str = "eu") -> dict[str, object]:
    return {"state": "count", "key": key(user_id, region), "value": {"n": n}}


def test_state_is_that_of_the_newest_whole_checkpoint(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1), put_count(6, "eu", 1), put_count(9, "us", 3))
    job.batch(put_count(1, "eu", 2), delete_count(6, "eu"))
    job.batch(put_count(1, "eu", 99), acks=1)
    assert cairn("state", "clicks", "--json").json == [count(1, 2), count(9, 3, "us")]


def test_state_of_an_older_checkpoint(cairn: Cairn, job: StatefulJob) -> None:
    first = job.batch(put_count(1, "eu", 1), put_count(6, "eu", 1))
    job.batch(put_count(1, "eu", 2), delete_count(6, "eu"))
    found = cairn("state", "clicks", "--json", "--checkpoint", str(first)).json
    assert found == [count(1, 1), count(6, 1)]


def test_state_is_read_from_bases_and_the_changes_after_them(
    cairn: Cairn, job: StatefulJob
) -> None:
    first = job.batch(put_count(1, "eu", 1), put_count(2, "eu", 1), put_count(6, "eu", 1))
    job.batch(delete_count(2, "eu"))
    job.materialize(0, first, put_count(1, "eu", 1), put_count(2, "eu", 1))
    job.batch(put_count(1, "eu", 5))
    assert cairn("state", "clicks", "--json").json == [count(1, 5), count(6, 1)]


def test_list_elements_come_in_order_with_their_index(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(*put_list(1, "eu", "old", "older", "oldest"))
    job.batch(clear_list(1, "eu"), *put_list(1, "eu", "b", "a"))
    assert cairn("state", "clicks", "--json").json == [
        {"state": "seen", "key": key(1), "index": 0, "value": {"word": "b"}},
        {"state": "seen", "key": key(1), "index": 1, "value": {"word": "a"}},
    ]


def test_map_entries_come_with_their_map_key(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_map(1, "eu", "ä", 3), put_map(1, "eu", "b", 4))
    found = cairn("state", "clicks", "--json").json
    assert sorted(found, key=lambda row: str(row["map_key"])) == [
        {"state": "by_word", "key": key(1), "map_key": {"word": "b"}, "value": {"n": 4}},
        {"state": "by_word", "key": key(1), "map_key": {"word": "ä"}, "value": {"n": 3}},
    ]


@pytest.mark.parametrize("wanted", ['{"region": "us", "user_id": 1}', '[1, "us"]'])
def test_state_of_one_key(cairn: Cairn, job: StatefulJob, wanted: str) -> None:
    job.batch(put_count(1, "eu", 1), put_count(1, "us", 2), put_count(9, "us", 3))
    assert cairn("state", "clicks", "--json", "--key", wanted).json == [count(1, 2, "us")]


def test_state_of_one_variable(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1), *put_list(1, "eu", "a"))
    assert cairn("state", "clicks", "--json", "--name", "count").json == [count(1, 1)]


def test_state_of_a_key_that_has_none_is_an_empty_array(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1))
    assert cairn("state", "clicks", "--json", "--key", '[7, "eu"]').json == []


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("{", "--key takes JSON"),
        ("7", "whose fields are user_id, region"),
        ('{"user_id": 1}', "whose fields are user_id, region"),
        ('[1, "eu", 2]', "whose fields are user_id, region"),
    ],
)
def test_key_that_does_not_fit_is_refused_with_its_fields(
    cairn: Cairn, job: StatefulJob, wanted: str, says: str
) -> None:
    job.batch(put_count(1, "eu", 1))
    outcome = cairn("state", "clicks", "--json", "--key", wanted)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err


def test_unknown_state_is_refused_with_the_known_ones(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1))
    outcome = cairn("state", "clicks", "--name", "cuont")
    assert outcome.code == 2
    assert "there are: by_word, count, seen" in outcome.err


def test_checkpoint_that_cannot_be_read_is_refused_with_those_that_can(
    cairn: Cairn, job: StatefulJob
) -> None:
    for n in range(4):
        job.batch(put_count(1, "eu", n))
    assert cairn("cleanup").code == 0
    subsumed = cairn("state", "clicks", "--checkpoint", "1")
    assert subsumed.code == 2
    assert "checkpoint 1 is SUBSUMED; those that can be read are 2, 3, 4" in subsumed.err
    unknown = cairn("state", "clicks", "--checkpoint", "77")
    assert "checkpoint 77 does not exist; those that can be read are 2, 3, 4" in unknown.err


def test_job_without_a_whole_checkpoint_has_no_state_to_read(
    cairn: Cairn, job: StatefulJob
) -> None:
    job.batch(acks=1)
    outcome = cairn("state", "clicks")
    assert outcome.code == 4
    assert "no checkpoint is complete yet" in outcome.err


def test_corrupt_segment_is_reported_with_checkpoint_file_and_offset(
    cairn: Cairn, job: StatefulJob
) -> None:
    job.batch(put_count(1, "eu", 1))
    [path] = Path(unquote(urlsplit(job.storage).path)).rglob("*.seg")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    outcome = cairn("state", "clicks", "--json")
    assert outcome.code == 5
    assert "job clicks, checkpoint 1, file " in outcome.err
    assert "offset 0" in outcome.err


def test_missing_object_is_a_failed_store(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1))
    [path] = Path(unquote(urlsplit(job.storage).path)).rglob("*.seg")
    path.unlink()
    assert cairn("state", "clicks").code == 3


def test_jobs_checkpoints_and_files_are_listed(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1), put_count(6, "eu", 1))
    job.batch(acks=1)
    [listed] = cairn("jobs", "--json").json
    assert (listed["job_name"], listed["parallelism"], listed["checkpoints"]) == ("clicks", 2, 1)
    second, first = cairn("checkpoints", "clicks", "--json").json
    assert (first["status"], first["acks"], first["new_segments"]) == ("CONFIRMED", 2, 2)
    assert (second["status"], second["acks"], second["new_segments"]) == ("IN_PROGRESS", 1, 0)
    files = cairn("files", "clicks", "--json").json
    assert [row["kept_because"] for row in files] == ["needed by checkpoints 1 to 2"] * 2


def test_checkpoints_are_the_newest_and_can_be_chosen(cairn: Cairn, job: StatefulJob) -> None:
    for _ in range(3):
        job.batch(put_count(1, "eu", 1))
    job.batch(acks=1)

    def chosen(*options: str) -> list[int]:
        rows = cairn("checkpoints", "clicks", "--json", *options).json
        return [row["checkpoint_id"] for row in rows]

    assert chosen() == [4, 3, 2, 1]
    assert chosen("--limit", "2") == [4, 3]
    assert chosen("--status", "in_progress") == [4]
    assert chosen("--status", "CONFIRMED", "--limit", "1") == [3]
    [third] = cairn("checkpoints", "clicks", "--json", "--status", "confirmed", "--limit", "1").json
    assert chosen("--since", third["began_at"]) == [4, 3]
    assert chosen("--since", "2100-01-01") == []
    assert "the newest 2; --limit prints more" in cairn("checkpoints", "clicks", "--limit", "2").err
    assert "--limit" not in cairn("checkpoints", "clicks", "--limit", "4").err


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--limit", "0", "no number from 1"),
        ("--limit", "-1", "expected one argument|no number from 1"),
        ("--limit", "9" * 30, "no number from 1"),
        ("--status", "DONE", "invalid choice: 'DONE'"),
        ("--since", "yesterday", "no ISO time such as"),
    ],
)
def test_a_choice_of_checkpoints_that_means_nothing_is_refused(
    cairn: Cairn, option: str, value: str, why: str
) -> None:
    refused = cairn("checkpoints", "clicks", option, value)
    assert refused.code == 2
    assert re.search(why, refused.err)


def test_tables_for_people_hold_what_the_json_does(cairn: Cairn, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1))
    assert "clicks" in cairn("jobs").out
    assert "COMPLETED" in cairn("checkpoints", "clicks").out
    assert "needed by checkpoint 1" in cairn("files", "clicks").out
    assert '{"user_id": 1, "region": "eu"}  {"n": 1}' in " ".join(
        cairn("state", "clicks").out.split()
    ).replace("} {", "}  {")


def test_cleanup_frees_what_only_old_checkpoints_needed(cairn: Cairn, job: StatefulJob) -> None:
    for n in range(5):
        job.batch(put_count(1, "eu", n))
        if n == 2:
            job.materialize(0, 2, put_count(1, "eu", 1))
    job.batch()
    [plan] = cairn("cleanup", "--dry-run", "--json").json
    assert plan["dry_run"] is True
    assert len(cairn("files", "clicks", "--json").json) == 6
    [done] = cairn("cleanup", "--job", "clicks", "--json").json
    assert done == plan | {"dry_run": False}
    assert done["deleted_files"] > 0
    assert len(cairn("files", "clicks", "--json").json) == 6 - done["deleted_files"]
    assert cairn("state", "clicks", "--json").json == [count(1, 4)]


def test_cleanup_of_all_continues_after_a_job_whose_files_cannot_be_deleted(
    cairn: Cairn, metastore_url: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        job = StatefulJob(metastore_url, (tmp_path / name).as_uri(), name=name).register()
        for n in range(4):
            job.batch(put_count(1, "eu", n))
        job.materialize(0, 3, put_count(1, "eu", 2))
        for _ in range(3):
            job.batch()
    [directory] = (tmp_path / "a").rglob("tm")
    directory.rename(tmp_path / "away")
    directory.symlink_to("tm")  # a link to itself: nothing below it can be reached
    outcome = cairn("cleanup", "--json")
    assert outcome.code == 3
    assert outcome.err.startswith("error: 3 files of job a could not be deleted; `cairn files`")
    by_job = {report["job"]: report for report in json.loads(outcome.out)}
    assert by_job["a"]["failed_deletes"] == 3
    assert (by_job["b"]["deleted_files"], by_job["b"]["failed_deletes"]) == (3, 0)
    because = [row["kept_because"] for row in cairn("files", "a", "--json").json]
    assert sum("tried 1 times, last error: " in words for words in because) == 3


def test_cleanup_of_all_continues_after_a_job_whose_storage_is_refused(
    cairn: Cairn, metastore_url: str, tmp_storage: str
) -> None:
    StatefulJob(metastore_url, "s3://somebody-elses", name="a").register(owns_root=False)
    StatefulJob(metastore_url, tmp_storage, name="b").register()
    outcome = cairn("cleanup", "--json")
    assert outcome.code == 4
    assert outcome.err.startswith("error: the job's storage s3://somebody-elses is not below")
    assert [report["job"] for report in json.loads(outcome.out)] == ["b"]


def test_unknown_job_is_refused_with_the_known_ones(cairn: Cairn, job: StatefulJob) -> None:
    for command in (["checkpoints"], ["files"], ["state"], ["cleanup", "--job"]):
        outcome = cairn(*command, "clikcs")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == "error: no job 'clikcs'; did you mean clicks? there are: clicks\n"


def test_nothing_yet_is_an_empty_array(cairn: Cairn) -> None:
    assert cairn("jobs", "--json").json == []
    assert cairn("cleanup", "--json").json == []
    assert "there are none yet" in cairn("files", "clicks").err


def test_migrate_says_what_it_applied(
    empty_database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["db", "migrate", "--metastore", empty_database_url]
    assert main(["jobs", "--metastore", empty_database_url]) == 4
    assert "run `cairn db migrate`" in capsys.readouterr().err
    assert main([*command, "--json"]) == 0
    applied = json.loads(capsys.readouterr().out)
    assert applied[-1] == {"revision": head_revision()}
    assert main(command) == 0
    assert capsys.readouterr().out == f"nothing to do: at revision {head_revision()}\n"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_missing_metastore_names_both_ways_to_give_it(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: no metastore: give --metastore, or set CAIRN_METASTORE")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["jbos"],
        ["state"],
        ["jobs", "--jsno"],
        ["state", "clicks", "--checkpoint", "x"],
        ["state", "clicks", "--timers", "--name", "count"],
    ],
)
def test_wrong_arguments_are_one_line_with_where_to_look(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "--help` lists the commands" in captured.err
    assert captured.err.count("\n") == 1


def test_metastore_of_an_unknown_form_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--metastore", "mysql://u:s3cret@h/d"]) == 2
    message = capsys.readouterr().err
    assert "embedded:<directory>" in message
    assert "s3cret" not in message


def test_it_runs_as_a_module_and_survives_a_closed_pipe(
    metastore_url: str, job: StatefulJob
) -> None:
    job.batch(*put_list(1, "eu", *map(str, range(4_000))))
    process = subprocess.Popen(
        [sys.executable, "-m", "cairn.cli", "state", "clicks", "--json", "--metastore", job.url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith('[{"state": "seen"')
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


def test_nothing_that_moves_a_cursor_is_printed_whatever_a_row_holds(
    cairn: Cairn, job: StatefulJob
) -> None:
    # As a program other than Cairn may have written it.
    StatefulJob(job.url, job.storage, name=NASTY).register()
    for arguments in (["jobs"], ["jobs", "--json"], ["files", "nobody"], ["cleanup", "--dry-run"]):
        out = cairn(*arguments)
        printed = out.out + out.err
        assert "\\u001b[2J" in printed
        assert is_printable(printed.replace("\n", "")), arguments
    assert NASTY in [row["job_name"] for row in cairn("jobs", "--json").json]


NASTY = "\x1b[2J\x9b2J\u202e[/foo]\r\nnext"
