"""The handle a stateful processor's `init` gets: at plan time, and in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cairn.errors import BadInputError
from cairn.state.codec import TupleCodec
from cairn.state.fields import RowFactory
from cairn.state.variables import CurrentKey, ListState, MapState, ValueState
from cairn.state.view import Overlay

StateKind = Literal["value", "list", "map"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDeclaration:
    """A state variable that a processor declares; schemas are StructTypes' JSON values."""

    name: str
    kind: StateKind
    value_schema: Mapping[str, Any]
    user_key_schema: Mapping[str, Any] | None = None
    """Of a map's keys; None for values and lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSpec(StateDeclaration):
    """A declared state variable and its id in entry keys, 0 to 65535."""

    state_id: int

    @classmethod
    def of(cls, declaration: StateDeclaration, state_id: int) -> VariableSpec:
        """Returns a declaration with the id that it was given."""
        return cls(
            name=declaration.name,
            kind=declaration.kind,
            value_schema=declaration.value_schema,
            user_key_schema=declaration.user_key_schema,
            state_id=state_id,
        )


class _Handle:
    """The methods of `pyspark.sql.streaming.StatefulProcessorHandle`, with Spark's names."""

    def __init__(self, overlay: Overlay, row_factory: RowFactory | None) -> None:
        self._overlay = overlay
        self._row_factory = row_factory
        self._current = CurrentKey()
        self._names: set[str] = set()

    def getValueState(
        self,
        stateName: str,
        schema: object,
        ttlDurationMs: int | None = None,
    ) -> ValueState:
        """Declares value state; `schema` is a StructType or DDL text.

        Raises:
            BadInputError: the name is taken, TTL is asked for, it is too late to declare state, or
                state cannot hold the schema.
        """
        spec = self._declare(stateName, "value", schema, None, ttlDurationMs)
        return ValueState(spec.name, spec.state_id, self._current, self._overlay, self._codec(spec))

    def getListState(
        self,
        stateName: str,
        schema: object,
        ttlDurationMs: int | None = None,
    ) -> ListState:
        """Declares list state; otherwise as getValueState."""
        spec = self._declare(stateName, "list", schema, None, ttlDurationMs)
        return ListState(spec.name, spec.state_id, self._current, self._overlay, self._codec(spec))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: object,
        valueSchema: object,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Declares map state; otherwise as getValueState."""
        spec = self._declare(stateName, "map", valueSchema, userKeySchema, ttlDurationMs)
        user_key_codec = TupleCodec(
            spec.user_key_schema or {"fields": []},
            name=f"key of state variable {spec.name}",
            row_factory=self._row_factory,
        )
        return MapState(
            spec.name,
            spec.state_id,
            self._current,
            self._overlay,
            self._codec(spec),
            user_key_codec,
        )

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Refused: timers are not supported yet."""
        raise _unsupported("registerTimer", "timers")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Refused: timers are not supported yet."""
        raise _unsupported("deleteTimer", "timers")

    def listTimers(self) -> Iterator[int]:
        """Refused: timers are not supported yet."""
        raise _unsupported("listTimers", "timers")

    def deleteIfExists(self, stateName: str) -> None:
        """Does nothing for a name that the processor does not declare.

        Raises:
            BadInputError: the processor declares the state variable.
        """
        if stateName in self._names:
            raise _declared_and_deleted(stateName)

    def _declare(
        self,
        name: str,
        kind: StateKind,
        value_schema: object,
        user_key_schema: object,
        ttl_ms: int | None,
    ) -> VariableSpec:
        if ttl_ms is not None:
            raise _unsupported(f"state variable {name}: ttlDurationMs", "TTL")
        if self._current.key is not None:
            raise BadInputError(
                f"state variable {name} is declared while rows are handled; declare it in init"
            )
        if name in self._names:
            raise BadInputError(f"State variable with name {name} already exists")
        spec = self._spec(name, kind, value_schema, user_key_schema)
        self._names.add(name)
        return spec

    def _spec(
        self, name: str, kind: StateKind, value_schema: object, user_key_schema: object
    ) -> VariableSpec:
        raise NotImplementedError

    def _codec(self, spec: VariableSpec) -> TupleCodec:
        return TupleCodec(
            spec.value_schema, name=f"state variable {spec.name}", row_factory=self._row_factory
        )


class DeclaringHandle(_Handle):
    """For plan time: records what a processor declares. Its state can be neither read nor changed.

    `resolve_schema` turns what the processor gives as a schema into a StructType's JSON value.
    """

    def __init__(self, resolve_schema: Callable[[object], Mapping[str, Any]]) -> None:
        super().__init__(Overlay(_NoState()), None)
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
        super().deleteIfExists(stateName)
        self._deleted.add(stateName)

    def _spec(
        self, name: str, kind: StateKind, value_schema: object, user_key_schema: object
    ) -> VariableSpec:
        if name in self._deleted:
            raise _declared_and_deleted(name)
        declaration = StateDeclaration(
            name=name,
            kind=kind,
            value_schema=self._struct(name, value_schema),
            user_key_schema=self._struct(name, user_key_schema) if kind == "map" else None,
        )
        self._declarations.append(declaration)
        return VariableSpec.of(declaration, 0)

    def _struct(self, name: str, schema: object) -> Mapping[str, Any]:
        resolved = self._resolve_schema(schema)
        if not isinstance(resolved, Mapping) or resolved.get("type") != "struct":
            raise BadInputError(
                f"state variable {name}: its schema is {schema!r}; it has to be a StructType or "
                "DDL text such as 'count long'"
            )
        return resolved


class StateHandle(_Handle):
    """For tasks: gives the plan's state variables over a batch's overlay.

    Schemas are the plan's; `variables` is by name. With `row_factory` (`pyspark.sql.Row`) nested
    structs and a map's values by `getValue` come as rows with field names, as they do in Spark.
    """

    def __init__(
        self,
        variables: Mapping[str, VariableSpec],
        overlay: Overlay,
        row_factory: RowFactory | None = None,
    ) -> None:
        super().__init__(overlay, row_factory)
        self._variables = variables

    def set_key(self, key_group: int, key_bytes: bytes) -> None:
        """Makes a grouping key the current one for all variables. Ends `init`."""
        self._current.key = (key_group, key_bytes)

    def deleteIfExists(self, stateName: str) -> None:
        """Does nothing for a name that the plan does not know."""
        if stateName in self._variables:
            raise _declared_and_deleted(stateName)

    def _spec(
        self, name: str, kind: StateKind, value_schema: object, user_key_schema: object
    ) -> VariableSpec:
        spec = self._variables.get(name)
        if spec is None or spec.kind != kind:
            planned = "no such variable" if spec is None else f"a {spec.kind} of that name"
            raise BadInputError(
                f"init declares the {kind} state variable {name}, the query's plan has {planned}: "
                "init has to declare the same state variables every time it is called"
            )
        return spec


class _NoState:
    """A Reader of no state at all."""

    def get(self, key: bytes, /) -> bytes | None:
        return None

    def scan(self, prefix: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def last(self, prefix: bytes, /) -> bytes | None:
        return None


def _unsupported(what: str, feature: str) -> BadInputError:
    return BadInputError(
        f"{what}: this version of Cairn does not support {feature} yet, and never ignores it "
        "silently. Remove the call, or keep this query on Spark's own transformWithState"
    )


def _declared_and_deleted(name: str) -> BadInputError:
    return BadInputError(
        f"deleteIfExists names the state variable {name}, which the processor declares: do one or "
        "the other; to forget a key's state, clear it while the key's rows are handled"
    )
