"""Programs for the C core: the conversion of a body as a flat sequence of operations.

`loader.project.projection` and `resolve` compile each field twice, to Python functions and to `Code`; `check` compiles
schemas. `assemble` converts the code to the words that `core/program.c` executes; `core/program.h` documents each
operation. The code is None for a conversion that the core does not support; Python then converts the messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

from headrace.avro_codec.readable import (
    DECIMAL_BYTES_MAX,
    DECIMAL_WORDS,
    TIMESTAMP_MS_MAX,
    unscaled_max,
)
from headrace.avro_schema import Primitive, PrimitiveType
from headrace.avro_schema.message_time import TimeUnit

FRAMES_MAX = 32
SLOTS_MAX = 4_096
TIME_FIELDS_MAX = 8
TIME_UNITS = {TimeUnit.MILLIS: 1, TimeUnit.MICROS: 2, TimeUnit.NANOS: 3, TimeUnit.DAYS: 4, TimeUnit.TEXT: 5}
"""The numbers of time units in `core/core.h`."""
UNITS_BY_NUMBER = {number: unit for unit, number in TIME_UNITS.items()}


class Op(IntEnum):
    """The operations of `core/program.h`, in its order."""

    END = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FIXED = 4
    BYTES = 5
    STRING = 6
    ENUM = 7
    DECIMAL = 8
    TIMESTAMP = 9
    DATE = 10
    UNION = 11
    CAPTURE = 12
    CAPTURE_TEXT = 13
    EMIT = 14
    INT_TO_FLOAT = 15
    LONG_TO_FLOAT = 16
    INT_TO_DOUBLE = 17
    LONG_TO_DOUBLE = 18
    FLOAT_TO_DOUBLE = 19
    ENUM_MAP = 20
    UNION_DROP = 21
    JUMP = 22
    REFUSE = 23
    BLOCK = 24
    NEXT = 25
    MARK = 26
    ARRANGE = 27


class OperationFlag(IntFlag):
    REWRITTEN = 1
    ZERO_WIDTH = 2
    WALKED = 4


@dataclass(frozen=True, slots=True)
class CoreOperation:
    """One operation of the core that has no inner operations; operands are numbers, or constants as bytes."""

    op: Op
    operands: tuple[int | bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Branches:
    op: Op
    branches: tuple[Code, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """The conversion of an array or map: `body` converts one item and is executed for all items of all blocks."""

    flags: OperationFlag
    body: Code


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The conversion of a record to a row with columns in another order than the writer's fields.

    `fields` convert the fields in the writer's order; one of them may convert several adjacent fields. `columns` are in
    the order of the row: a number is an index in `fields`, bytes are an encoded constant.
    """

    fields: tuple[Code, ...]
    columns: tuple[int | bytes, ...]


Code = tuple[CoreOperation | Branches | Loop | Arrangement, ...]

NOTHING: Code = ()
REFUSE: Code = (CoreOperation(Op.REFUSE),)

_WALKS: dict[PrimitiveType, Code] = {
    PrimitiveType.NULL: NOTHING,
    PrimitiveType.BOOLEAN: (CoreOperation(Op.BOOLEAN),),
    PrimitiveType.INT: (CoreOperation(Op.INT),),
    PrimitiveType.LONG: (CoreOperation(Op.LONG),),
    PrimitiveType.FLOAT: (CoreOperation(Op.FIXED, (4,)),),
    PrimitiveType.DOUBLE: (CoreOperation(Op.FIXED, (8,)),),
    PrimitiveType.BYTES: (CoreOperation(Op.BYTES),),
    PrimitiveType.STRING: (CoreOperation(Op.STRING),),
}

_PROMOTIONS: dict[tuple[PrimitiveType, PrimitiveType], Code] = {
    (PrimitiveType.INT, PrimitiveType.FLOAT): (CoreOperation(Op.INT_TO_FLOAT),),
    (PrimitiveType.LONG, PrimitiveType.FLOAT): (CoreOperation(Op.LONG_TO_FLOAT),),
    (PrimitiveType.INT, PrimitiveType.DOUBLE): (CoreOperation(Op.INT_TO_DOUBLE),),
    (PrimitiveType.LONG, PrimitiveType.DOUBLE): (CoreOperation(Op.LONG_TO_DOUBLE),),
    (PrimitiveType.FLOAT, PrimitiveType.DOUBLE): (CoreOperation(Op.FLOAT_TO_DOUBLE),),
}


def walk_primitive(kind: PrimitiveType) -> Code:
    """Returns the core's operations that validate a value of the type `kind` and leave its bytes unchanged."""
    return _WALKS[kind]


def walk_readable(writer: Primitive, load: Primitive) -> Code:
    """Returns the core's operations that validate a value, reject values that queries cannot show, and note old days
    (see `readable`). The bytes of the value stay unchanged.

    Args:
        writer: the type of the value in the message.
        load: the type of the column; its logical type determines which values queries cannot show.
    """
    logical = load.logical.name if load.logical is not None else ""
    if load.logical is not None and logical == "decimal":
        largest = unscaled_max(load.logical).to_bytes(struct.calcsize(DECIMAL_WORDS), "little")
        return (CoreOperation(Op.DECIMAL, (DECIMAL_BYTES_MAX, *struct.unpack(DECIMAL_WORDS, largest))),)
    if logical == "date":
        return (CoreOperation(Op.DATE),)
    if logical == "timestamp-millis" and writer.type is PrimitiveType.LONG:
        return (CoreOperation(Op.TIMESTAMP, (TIMESTAMP_MS_MAX & 0xFFFFFFFF, TIMESTAMP_MS_MAX >> 32)),)
    return _WALKS[writer.type]


def capture_time(rank: int, unit: TimeUnit) -> Code | None:
    """Returns the core's operation that captures the time in a value, without moving on; None if the core cannot,
    because there are too many time fields.

    Args:
        rank: number of the time field, by preference from 0.
    """
    if rank >= TIME_FIELDS_MAX:
        return None
    if unit is TimeUnit.TEXT:
        return (CoreOperation(Op.CAPTURE_TEXT, (rank,)),)
    return (CoreOperation(Op.CAPTURE, (rank, TIME_UNITS[unit])),)


def promote(writer: PrimitiveType, load: PrimitiveType) -> Code:
    return _PROMOTIONS[writer, load]


def fixed(size: int) -> Code:
    return (CoreOperation(Op.FIXED, (size,)),)


def enum(symbols: int) -> Code:
    return (CoreOperation(Op.ENUM, (symbols,)),)


def enum_map(rows: Sequence[bytes]) -> Code:
    """Returns the core's operation that replaces the symbols of an enum. `rows` has the new bytes of each symbol, empty
    for a symbol that is rejected."""
    return (CoreOperation(Op.ENUM_MAP, (len(rows), *rows)),)


def emit(constant: bytes) -> Code:
    return (CoreOperation(Op.EMIT, (constant,)),) if constant else NOTHING


def concatenate(*codes: Code | None) -> Code | None:
    """Returns the operations of several conversions, to be executed one after the other; None if one of the conversions
    is None, because the core does not support it."""
    known = _all(codes)
    return None if known is None else tuple(step for code in known for step in code)


def union(branches: Sequence[Code | None], *, keeps_index: bool) -> Code | None:
    known = _all(branches)
    return None if known is None else (Branches(Op.UNION if keeps_index else Op.UNION_DROP, known),)


def array(items: Code | None, *, zero_width: bool, rewritten: bool) -> Code | None:
    if items is None:
        return None
    flags = (OperationFlag.ZERO_WIDTH if zero_width else OperationFlag(0)) | (
        OperationFlag.REWRITTEN if rewritten else OperationFlag(0)
    )
    return (Loop(flags | OperationFlag.WALKED, NOTHING),) if zero_width and not rewritten else (Loop(flags, items),)


def map_of(values: Code | None, *, rewritten: bool) -> Code | None:
    key = _WALKS[PrimitiveType.STRING]
    return None if values is None else (Loop(OperationFlag.REWRITTEN if rewritten else OperationFlag(0), key + values),)


def record(fields: Sequence[tuple[int, Code | None]], columns: Sequence[bytes]) -> Code | None:
    """Returns the core's operations that convert a record to a row; None if the core cannot convert one of the fields.

    Args:
        fields: for each field in the writer's order, the index of its column and the operations for its value. An
            index greater than the number of columns drops the value.
        columns: for each column, its encoded constant; ignored if the column gets a field.
    """
    codes = _all([code for _, code in fields])
    if codes is None:
        return None
    columns_of_fields = [column for column, _ in fields]
    field_of = {column: index for index, column in enumerate(columns_of_fields)}
    if columns_of_fields == sorted(columns_of_fields) and max(columns_of_fields, default=0) <= len(columns):
        parts = (codes[field_of[i]] if i in field_of else emit(columns[i]) for i in range(len(columns)))
        return tuple(step for part in parts for step in part)
    return (_arrange(codes, columns_of_fields, columns),)


def _arrange(codes: Sequence[Code], columns_of_fields: Sequence[int], columns: Sequence[bytes]) -> Arrangement:
    """Returns the core's operation that converts the fields of a record and puts them into the order of the columns.
    Adjacent fields that stay adjacent are moved together.

    Args:
        codes: the operations of each field, in the writer's order.
        columns_of_fields: index of the column of each field; of a field that is dropped, greater than their number.
        columns: for each column, its encoded constant; ignored if the column gets a field.
    """
    groups: list[Code] = []
    first_of: dict[int, int] = {}
    members: set[int] = set()
    for index, column in enumerate(columns_of_fields):
        members.add(column)
        if index and column == columns_of_fields[index - 1] + 1:
            groups[-1] += codes[index]
        else:
            first_of[column] = len(groups)
            groups.append(codes[index])
    remaining = [i for i in range(len(columns)) if i in first_of or i not in members]
    return Arrangement(tuple(groups), tuple(first_of.get(i, columns[i]) for i in remaining))


def _all(codes: Iterable[Code | None]) -> tuple[Code, ...] | None:
    found = []
    for code in codes:
        if code is None:
            return None
        found.append(code)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the core: 32-bit words, and the constants that they refer to."""

    words: tuple[int, ...]
    constants: bytes

    def __str__(self) -> str:
        """Returns one line per operation: position, name, operands."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        frames, slots = self.words[:2]
        yield f"frames {frames}, slots {slots}"
        at = 2
        while at < len(self.words):
            op = Op(self.words[at])
            operands = self.words[at + 1 : at + 1 + self._operands(at)]
            yield f"{at:5} {op.name.lower()} {self._operand_text(op, operands)}".rstrip()
            at += 1 + len(operands)

    def _operands(self, at: int) -> int:
        match Op(self.words[at]):
            case Op.FIXED | Op.ENUM | Op.CAPTURE_TEXT | Op.JUMP | Op.MARK:
                return 1
            case Op.CAPTURE | Op.EMIT | Op.TIMESTAMP:
                return 2
            case Op.BLOCK:
                return 3
            case Op.NEXT:
                return 4
            case Op.DECIMAL:
                return 5
            case Op.UNION | Op.UNION_DROP:
                return 1 + self.words[at + 1]
            case Op.ENUM_MAP:
                return 1 + 2 * self.words[at + 1]
            case Op.ARRANGE:
                return 3 + 3 * self.words[at + 3]
        return 0

    def _operand_text(self, op: Op, operands: Sequence[int]) -> str:
        match op:
            case Op.DECIMAL:
                largest = int.from_bytes(struct.pack(DECIMAL_WORDS, *operands[1:]), "little")
                return f"{operands[0]} bytes, within {largest}"
            case Op.TIMESTAMP:
                return f"within {operands[1] << 32 | operands[0]}"
            case Op.EMIT:
                return self._constant(operands)
            case Op.UNION | Op.UNION_DROP:
                return "to " + " ".join(map(str, operands[1:]))
            case Op.ENUM_MAP:
                pairs = (operands[i : i + 2] for i in range(1, len(operands), 2))
                return " ".join(self._constant(pair) if pair[1] else "refused" for pair in pairs)
            case Op.BLOCK:
                return f"frame {operands[0]} {_flags(operands[1])} end {operands[2]}"
            case Op.NEXT:
                return f"frame {operands[0]} {_flags(operands[1])} items {operands[2]} block {operands[3]}"
            case Op.ARRANGE:
                columns = (operands[i : i + 3] for i in range(3, len(operands), 3))
                columns_text = (f"slot {column[1]}" if column[0] else self._constant(column[1:]) for column in columns)
                return f"from slot {operands[0]}, {operands[1]} of them: " + ", ".join(columns_text)
        return " ".join(map(str, operands))

    def _constant(self, position: Sequence[int]) -> str:
        return self.constants[position[0] : position[0] + position[1]].hex() or "nothing"


def _flags(flags: int) -> str:
    return "+".join(str(flag.name).lower() for flag in OperationFlag if flag & flags) or "plain"


def assemble(code: Code | None) -> Program | None:
    """Returns the core's program for a message with these operations (`code`). Returns None if `code` is None, or is
    needs more frames or slots than the core has: for nested arrays and maps, or for fields in another order."""
    if code is None:
        return None
    found = _Assembler()
    found.append_code(code, 0, 0)
    found.words.append(Op.END)
    if found.frames > FRAMES_MAX or found.slots > SLOTS_MAX:
        return None
    return Program((found.frames, found.slots, *found.words[2:]), bytes(found.constants))


@dataclass(slots=True)
class _Assembler:
    words: list[int] = field(default_factory=lambda: [0, 0])
    constants: bytearray = field(default_factory=bytearray)
    frames: int = 0
    slots: int = 0
    known: dict[bytes, int] = field(default_factory=dict)

    def append_code(self, code: Code, frame: int, slot: int) -> None:
        """Appends operations (`code`) to the program, as the 32-bit words that the core executes.

        Args:
            frame: number of the first unused frame, in which the core stores the state of an array or map.
            slot: number of the first unused slot, in which the core stores where a reordered field begins.
        """
        for step in code:
            match step:
                case CoreOperation():
                    self.words.append(step.op)
                    for operand in step.operands:
                        self.words += self.add_constant(operand) if isinstance(operand, bytes) else [operand]
                case Branches():
                    self._branches(step, frame, slot)
                case Loop():
                    self._loop(step, frame, slot)
                case Arrangement():
                    self._arrange(step, frame, slot)

    def add_constant(self, constant: bytes) -> list[int]:
        at = self.known.get(constant)
        if at is None:
            at = self.known[constant] = len(self.constants)
            self.constants += constant
        return [at, len(constant)]

    def _branches(self, step: Branches, frame: int, slot: int) -> None:
        count = len(step.branches)
        self.words += [step.op, count, *[0] * count]
        targets = len(self.words) - count
        jumps = []
        for index, branch in enumerate(step.branches):
            self.words[targets + index] = len(self.words)
            self.append_code(branch, frame, slot)
            if index < count - 1:
                self.words += [Op.JUMP, 0]
                jumps.append(len(self.words) - 1)
        for jump in jumps:
            self.words[jump] = len(self.words)

    def _loop(self, step: Loop, frame: int, slot: int) -> None:
        self.frames = max(self.frames, frame + 1)
        block = len(self.words)
        self.words += [Op.BLOCK, frame, step.flags, 0]
        body = len(self.words)
        self.append_code(step.body, frame + 1, slot)
        self.words += [Op.NEXT, frame, step.flags, body, block]
        self.words[block + 3] = len(self.words)

    def _arrange(self, step: Arrangement, frame: int, slot: int) -> None:
        inner_slot = slot + len(step.fields) + 1
        self.slots = max(self.slots, inner_slot)
        for index, code in enumerate(step.fields):
            self.words += [Op.MARK, slot + index]
            self.append_code(code, frame, inner_slot)
        self.words += [Op.ARRANGE, slot, len(step.fields), len(step.columns)]
        for column in step.columns:
            self.words += [0, *self.add_constant(column)] if isinstance(column, bytes) else [1, slot + column, 0]


def pack_words(words: Sequence[int]) -> bytes:
    """Returns the 32-bit words of a program as bytes, in the form that the core reads."""
    return struct.pack(f"={len(words)}I", *words)
