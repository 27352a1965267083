"""Schedules as people write them: every bad line is named, good ones become entries."""

from __future__ import annotations

import pytest

from app.schedule_file import read_schedule, situation_schedule
from db.errors import InputError
from db.schedule import Entry

NODES = ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    "text",
    [
        "second,device,rate,for_s\n20,5,5.42,\n0,3,2.57,60\n",
        "\ufeffSecond, Device, Rate, For_s\r\n20,5,5.42\r\n\r\n# a note\r\n0, 3, 2.57, 60\r\n",
        "0,3,2.57,60\n20,5,5.42",
    ],
    ids=["plain", "as a spreadsheet saves it", "without a head"],
)
def test_lines_become_entries_in_order(text: str) -> None:
    found = read_schedule(text, num_devices=8)
    assert found.problems == ()
    assert found.all_entries() == (
        Entry(at_s=0.0, device=3, rate=2.57, for_s=60.0),
        Entry(at_s=20.0, device=5, rate=5.42),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0,8,2", "device must be 0..7, given 8"),
        ("0,1.5,2", "device must be 0..7, given 1.5"),
        ("0,nan,2", "device must be 0..7, given nan"),
        ("x,1,2", "second must be a number, given x"),
        ("0,1,", "rate must be a number, given nothing"),
        ("0,1,-2", "rate must be a positive finite number"),
        ("0,1,inf", "rate must be a finite number, given inf"),
        ("-1,1,2", "at_s must be 0"),
        ("0,1,2,0", "for_s must be a positive"),
        ("0,1", "expected second, device, rate and perhaps for_s, given 2 values"),
        ("0,1,2,3,4", "given 5 values"),
        ("5,7,3", "device 7 has a rate at second 5, in line 2"),
    ],
)
def test_a_bad_line_is_named_and_hides_nothing(line: str, said: str) -> None:
    found = read_schedule(f"# head\n5,7,2\n{line}\n6,7,2\n7,9,2\n", num_devices=8)
    first, last = found.problems
    assert (first.line, last.line) == (3, 5)
    assert said in first.text
    assert len(found.entries) == 2
    with pytest.raises(InputError, match=r"line 3: .*; line 5: "):
        found.all_entries()


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "at least one injection"), ("second,rate,device\n0,1,2", "the head must be"), ("0,1,2\n" * 1, "")],
)
def test_texts_as_a_whole(text: str, said: str) -> None:
    problems = read_schedule(text, num_devices=8).problems
    assert (said in problems[0].text) if said else problems == ()


def test_a_situation_is_a_schedule() -> None:
    found = situation_schedule("S3", NODES, at_s=20.0)
    assert found == (Entry(at_s=20.0, device=3, rate=2.57), Entry(at_s=20.0, device=7, rate=5.42))
    with pytest.raises(InputError, match="nothing to play"):
        situation_schedule("S0", NODES)
    with pytest.raises(InputError, match="needs at least 2 nodes"):
        situation_schedule("S3", ((0, 1),))
