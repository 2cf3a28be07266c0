from __future__ import annotations

from benchmarks.picture import DOCS, PICTURE, batch_times, files_a_batch, picture


def test_the_picture_is_that_of_the_documented_figures() -> None:
    assert PICTURE.read_text() == picture(), "run `make picture`"


def test_every_documented_workload_is_in_the_picture() -> None:
    performance = (DOCS / "performance.md").read_text()
    results = performance.split("| workload |")[1].split("\n\n")[0]
    assert len(batch_times(performance)) == results.count("≥") > 0
    assert len(files_a_batch(performance)) == 3
