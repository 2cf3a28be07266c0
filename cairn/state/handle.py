"""The handle a stateful processor's `init` gets: at plan time, and in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cairn.errors import BadInputError
from cairn.names import check_fields, check_name
from cairn.state.arguments import checked_expiry, checked_ttl, declared_and_deleted
from cairn.state.codec import TupleCodec
from cairn.state.fields import RowFactory
from cairn.state.operator_lists import Lists, OperatorListState
from cairn.state.timers import Timers
from cairn.state.times import BatchTimes, TimeMode
from cairn.state.ttl import Ttl
from cairn.state.ttl_variables import TtlListState, TtlMapState, TtlValueState
from cairn.state.variables import CurrentKey, ListState, MapState, ValueState
from cairn.state.view import NoState, Overlay

StateKind = Literal["value", "list", "map", "operator_list", "operator_union"]

_NO_TIMES = BatchTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDeclaration:
    """A state variable that a processor declares; schemas are StructTypes' JSON values.

    Whether a variable has TTL may not change between runs; the length of the TTL may.
    """

    name: str
    kind: StateKind
    value_schema: Mapping[str, Any]
    user_key_schema: Mapping[str, Any] | None = None
    """Of a map's keys; None for the others."""
    ttl_ms: int | None = None
    """How long after it was set an entry expires; None for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSpec(StateDeclaration):
    """A declared state variable and its id in entry keys, 0 to 32767."""

    state_id: int
    value_layout: Mapping[str, Any] | None = None
    """How values are stored, by `cairn.state.evolution.merge`; None for as `value_schema` says."""

    @classmethod
    def of(
        cls,
        declaration: StateDeclaration,
        state_id: int,
        value_layout: Mapping[str, Any] | None = None,
    ) -> VariableSpec:
        """Returns a declaration with the id and layout that it was given."""
        return cls(
            name=declaration.name,
            kind=declaration.kind,
            value_schema=declaration.value_schema,
            user_key_schema=declaration.user_key_schema,
            ttl_ms=declaration.ttl_ms,
            state_id=state_id,
            value_layout=value_layout,
        )


class _Handle:
    """The methods of `pyspark.sql.streaming.StatefulProcessorHandle`, with Spark's names, and more.

    `lists` are the subtask's operator lists, which are changed in place.
    """

    def __init__(
        self, overlay: Overlay, lists: Lists, row_factory: RowFactory | None, times: BatchTimes
    ) -> None:
        self._overlay = overlay
        self._lists = lists
        self._row_factory = row_factory
        self._times = times
        self._timers = Timers(overlay)
        self._current = CurrentKey()
        self._names: set[str] = set()

    def getValueState(
        self,
        stateName: str,
        schema: object,
        ttlDurationMs: int | None = None,
    ) -> ValueState | TtlValueState:
        """Declares value state; `schema` is a StructType or DDL text.

        With `ttlDurationMs` a value expires so long after it was set; 0 is no TTL, as in Spark.

        Raises:
            BadInputError: the name is taken, TTL is asked for in another time mode than
                ProcessingTime, it is too late to declare state, or state cannot hold the schema.
        """
        spec = self._declare(stateName, "value", schema, None, ttlDurationMs)
        codec = self._codec(spec)
        variable = (spec.name, spec.state_id, self._current, self._overlay, codec)
        if spec.ttl_ms is None:
            return ValueState(*variable)
        return TtlValueState(*variable, self._ttl(spec.ttl_ms))

    def getListState(
        self,
        stateName: str,
        schema: object,
        ttlDurationMs: int | None = None,
    ) -> ListState:
        """Declares list state, whose elements expire on their own; otherwise as getValueState."""
        spec = self._declare(stateName, "list", schema, None, ttlDurationMs)
        codec = self._codec(spec)
        variable = (spec.name, spec.state_id, self._current, self._overlay, codec)
        if spec.ttl_ms is None:
            return ListState(*variable)
        return TtlListState(*variable, self._ttl(spec.ttl_ms))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: object,
        valueSchema: object,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Declares map state, whose user keys expire on their own; otherwise as getValueState."""
        spec = self._declare(stateName, "map", valueSchema, userKeySchema, ttlDurationMs)
        user_key_codec = TupleCodec(
            spec.user_key_schema or {"fields": []},
            name=f"key of state variable {spec.name}",
            row_factory=self._row_factory,
            takes_text=True,
        )
        codec = self._codec(spec)
        variable = (spec.name, spec.state_id, self._current, self._overlay, codec, user_key_codec)
        if spec.ttl_ms is None:
            return MapState(*variable)
        return TtlMapState(*variable, self._ttl(spec.ttl_ms))

    def getOperatorListState(self, stateName: str, schema: object) -> OperatorListState:
        """Declares a list of the subtask, which belongs to no key. Spark has no such method.

        It can be used from `init` to `close`; when the plan is built, it is empty, and
        changes to it are discarded. At another parallelism, the elements of all subtasks are split
        among the new ones (Flink's `OperatorStateStore.getListState`).

        Raises:
            BadInputError: the name is taken, it is too late to declare state, or state cannot hold
                the schema.
        """
        return self._operator_list(stateName, "operator_list", schema)

    def getUnionListState(self, stateName: str, schema: object) -> OperatorListState:
        """Declares a list of the subtask that starts a run with the elements of all subtasks.

        Otherwise as getOperatorListState (Flink's `OperatorStateStore.getUnionListState`). Put what
        the subtask is to keep: as it is, every restart multiplies it by the parallelism.
        """
        return self._operator_list(stateName, "operator_union", schema)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Adds a timer to the current key; one that is there already changes nothing.

        A time that has passed fires in this batch.

        Raises:
            BadInputError: the time mode is none, there is no key yet, or it is no time in ms.
        """
        key = self._timer_key("registerTimer")
        self._timers.register(*key, checked_expiry(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Removes a timer of the current key, if it is there; otherwise as registerTimer."""
        key = self._timer_key("deleteTimer")
        self._timers.delete(*key, checked_expiry(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Returns an iterator of the current key's timers in ms, ascending, as of this call.

        The one that is firing is still there.

        Raises:
            BadInputError: the time mode is none, or there is no key yet.
        """
        return self._timers.of_key(*self._timer_key("listTimers"))

    def deleteIfExists(self, stateName: str) -> None:
        """Does nothing for a name that the processor does not declare.

        Raises:
            BadInputError: the processor declares the state variable.
        """
        if stateName in self._names:
            raise declared_and_deleted(stateName)

    def _operator_list(self, name: str, kind: StateKind, schema: object) -> OperatorListState:
        spec = self._declare(name, kind, schema, None, None)
        # The same list object for the whole batch: what the processor does to it is the state.
        return OperatorListState(self._lists.setdefault(spec.state_id, []), self._codec(spec))

    def _declare(
        self,
        name: str,
        kind: StateKind,
        value_schema: object,
        user_key_schema: object,
        ttl_ms: int | None,
    ) -> VariableSpec:
        ttl_ms = checked_ttl(name, ttl_ms, self._times.mode)
        if self._current.key is not None:
            raise BadInputError(
                f"state variable {name} is declared while rows are handled; declare it in init"
            )
        if name in self._names:
            raise BadInputError(f"State variable with name {name} already exists")
        spec = self._spec(name, kind, value_schema, user_key_schema, ttl_ms)
        self._names.add(name)
        return spec

    def _spec(
        self,
        name: str,
        kind: StateKind,
        value_schema: object,
        user_key_schema: object,
        ttl_ms: int | None,
    ) -> VariableSpec:
        raise NotImplementedError

    def _timer_key(self, method: str) -> tuple[int, bytes]:
        """Returns the current key, for a method of timers."""
        if self._times.mode is TimeMode.NONE:
            raise BadInputError(
                f"{method}: the query has timeMode None, in which nothing ever fires. Pass "
                'timeMode="ProcessingTime" or "EventTime" to transformWithState'
            )
        if self._current.key is None:
            raise BadInputError(
                f"{method} was called outside of a key: timers belong to keys, and can be used "
                "only while a key's rows or timers are handled, not in init or close"
            )
        return self._current.key

    def _ttl(self, ttl_ms: int) -> Ttl:
        return Ttl(self._overlay, ttl_ms, self._times.processing_ms)

    def _codec(self, spec: VariableSpec) -> TupleCodec:
        return TupleCodec(
            spec.value_schema,
            name=f"state variable {spec.name}",
            row_factory=self._row_factory,
            layout=spec.value_layout,
        )


class DeclaringHandle(_Handle):
    """For plan time: records what a processor declares. Its state can be neither read nor changed.

    `resolve_schema` turns what the processor gives as a schema into a StructType's JSON value.
    """

    def __init__(
        self,
        resolve_schema: Callable[[object], Mapping[str, Any]],
        time_mode: TimeMode = TimeMode.NONE,
    ) -> None:
        super().__init__(Overlay(NoState()), {}, None, BatchTimes(time_mode))
        self._resolve_schema = resolve_schema
        self._declarations: list[StateDeclaration] = []
        self._deleted: set[str] = set()

    @property
    def declarations(self) -> tuple[StateDeclaration, ...]:
        """The state variables declared so far, in order."""
        return tuple(self._declarations)

    @property
    def deleted(self) -> frozenset[str]:
        """The names that `deleteIfExists` was called with."""
        return frozenset(self._deleted)

    def deleteIfExists(self, stateName: str) -> None:
        """Records that the name must not be declared, nor be known to the job."""
        check_name("a state variable", stateName)
        super().deleteIfExists(stateName)
        self._deleted.add(stateName)

    def _spec(
        self,
        name: str,
        kind: StateKind,
        value_schema: object,
        user_key_schema: object,
        ttl_ms: int | None,
    ) -> VariableSpec:
        check_name("a state variable", name)
        if name in self._deleted:
            raise declared_and_deleted(name)
        declaration = StateDeclaration(
            name=name,
            kind=kind,
            value_schema=self._struct(name, value_schema),
            user_key_schema=self._struct(name, user_key_schema) if kind == "map" else None,
            ttl_ms=ttl_ms,
        )
        self._declarations.append(declaration)
        # Any id: nothing is read or written at plan time, and registering gives the real one.
        return VariableSpec.of(declaration, len(self._declarations))

    def _struct(self, name: str, schema: object) -> Mapping[str, Any]:
        resolved = self._resolve_schema(schema)
        if not isinstance(resolved, Mapping) or resolved.get("type") != "struct":
            raise BadInputError(
                f"state variable {name}: its schema is {schema!r}; it has to be a StructType or "
                "DDL text such as 'count long'"
            )
        fields = [field["name"] for field in resolved["fields"]]
        if twice := sorted({field for field in fields if fields.count(field) > 1}):
            raise BadInputError(
                f"state variable {name}: its schema has several fields {', '.join(twice)}; "
                "give each a name of its own"
            )
        check_fields(f"state variable {name}", resolved)
        return resolved


class StateHandle(_Handle):
    """For tasks: gives the plan's state variables over a batch's overlay and the subtask's lists.

    Schemas are the plan's; `variables` is by name. With `row_factory` (`pyspark.sql.Row`) nested
    structs and a map's values by `getValue` are rows with field names, as they are in Spark.
    """

    def __init__(
        self,
        variables: Mapping[str, VariableSpec],
        overlay: Overlay,
        row_factory: RowFactory | None = None,
        times: BatchTimes = _NO_TIMES,
        lists: Lists | None = None,
    ) -> None:
        super().__init__(overlay, {} if lists is None else lists, row_factory, times)
        self._variables = variables

    def set_key(self, key_group: int, key_bytes: bytes) -> None:
        """Makes a grouping key the current one for all variables. Ends `init`."""
        self._current.key = (key_group, key_bytes)

    def deleteIfExists(self, stateName: str) -> None:
        """Does nothing for a name that the plan does not know."""
        if stateName in self._variables:
            raise declared_and_deleted(stateName)

    def _spec(
        self,
        name: str,
        kind: StateKind,
        value_schema: object,
        user_key_schema: object,
        ttl_ms: int | None,
    ) -> VariableSpec:
        spec = self._variables.get(name)
        if spec is None or spec.kind != kind:
            planned = "no such variable" if spec is None else f"a {spec.kind} of that name"
            raise BadInputError(
                f"init declares the {kind} state variable {name}, the query's plan has {planned}: "
                "init has to declare the same state variables every time it is called"
            )
        if spec.ttl_ms != ttl_ms:
            raise BadInputError(
                f"init declares the state variable {name} with ttlDurationMs {ttl_ms}, the query's "
                f"plan has {spec.ttl_ms}: init has to declare the same every time it is called"
            )
        return spec
