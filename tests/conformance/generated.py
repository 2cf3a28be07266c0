"""Random calls, as hypothesis strategies: the calls of one key over a few batches."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.conformance.scripts import Call

Script = list[list[list[Call]]]
"""Calls by batch and row."""

_longs = st.none() | st.sampled_from([0, 1, -1, 255, 256, 2**63 - 1, -(2**63)])
_texts = st.none() | st.sampled_from(["", "a", "ä", "\u0000", "a long text " * 20])
_value = st.tuples(_longs, _texts).map(list)
_element = st.tuples(_longs).map(list)
_user_key = st.tuples(
    st.none() | st.sampled_from(["", "a", "b", "ä"]), st.none() | st.sampled_from([0, -1, 300])
).map(list)


def _call(variable: str, method: str, *arguments: SearchStrategy[Any]) -> SearchStrategy[Call]:
    return st.tuples(st.just(variable), st.just(method), *arguments).map(list)


def _calls_of(suffix: str) -> list[SearchStrategy[Call]]:
    value, listed, mapped = f"value{suffix}", f"list{suffix}", f"map{suffix}"
    # Spark refuses empty lists; Cairn's own test covers them.
    elements = st.lists(_element, min_size=1, max_size=3)
    return [
        _call(value, "update", _value),
        *(_call(value, method) for method in ("get", "exists", "clear")),
        _call(listed, "appendValue", _element),
        _call(listed, "appendList", elements),
        _call(listed, "put", elements),
        *(_call(listed, method) for method in ("get", "exists", "clear")),
        _call(mapped, "updateValue", _user_key, _element),
        *(_call(mapped, m, _user_key) for m in ("getValue", "containsKey", "removeKey")),
        *(_call(mapped, m) for m in ("iterator", "keys", "values", "exists", "clear")),
    ]


def calls(*, timers: SearchStrategy[int] | None = None, ttl: bool = False) -> SearchStrategy[Call]:
    """Returns calls on state; `timers` are expiries; `ttl` adds the variables that have it."""
    found = _calls_of("") + (_calls_of("_ttl") if ttl else [])
    if timers is not None:
        found.append(_call("handle", "listTimers"))
        found += [
            _call("handle", "registerTimer", timers),
            _call("handle", "deleteTimer", timers),
            st.tuples(
                st.just("on"),
                timers,
                st.lists(
                    st.one_of(
                        *_calls_of(""),
                        _call("handle", "registerTimer", timers),
                        _call("handle", "deleteTimer", timers),
                        _call("handle", "listTimers"),
                    ),
                    max_size=3,
                ),
            ).map(list),
        ]
    return st.one_of(found)


def scripts(one: SearchStrategy[Call], *, batches: int) -> SearchStrategy[Script]:
    """Returns a key's calls over so many batches; it has no row in some."""
    rows = st.lists(st.lists(one, min_size=1, max_size=5), max_size=2)
    return st.lists(rows, min_size=batches, max_size=batches)


def sample(strategy: SearchStrategy[Script], size: int) -> list[Script]:
    """Returns examples, the same ones every time."""
    found: list[Script] = []

    @settings(
        max_examples=size, database=None, derandomize=True, deadline=None, phases=[Phase.generate]
    )
    @given(strategy)
    def keep(script: Script) -> None:
        found.append(script)

    keep()
    return found
