"""Programs for the C core: the conversion of a body as a flat sequence of operations.

`loader.project.projection` compiles each field twice, to Python functions and to `Code`. `assemble` converts the code
to the words that `core/program.c` executes; `core/program.h` documents each operation. A conversion that no operation
covers is None, and its messages are converted in Python.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

from headrace.avro_codec.readable import DECIMAL_BYTES_MAX, MILLIS_TIMES, TIMESTAMP_MS_MAX
from headrace.avro_schema import Primitive, PrimitiveType
from headrace.avro_schema.message_time import TimeUnit

FRAMES_MAX = 32
SLOTS_MAX = 4_096


class Op(IntEnum):
    """As in `core/program.h`, in its order."""

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
    UNION = 10
    NOTE = 11
    EMIT = 12
    INT_TO_FLOAT = 13
    LONG_TO_FLOAT = 14
    INT_TO_DOUBLE = 15
    LONG_TO_DOUBLE = 16
    FLOAT_TO_DOUBLE = 17
    ENUM_MAP = 18
    UNION_DROP = 19
    JUMP = 20
    REFUSE = 21
    BLOCK = 22
    NEXT = 23
    MARK = 24
    ARRANGE = 25


class Flag(IntFlag):
    REWRITTEN = 1
    ZERO_WIDTH = 2
    WALKED = 4


@dataclass(frozen=True, slots=True)
class Do:
    """One operation without ways: numbers are operands, bytes a constant."""

    op: Op
    operands: tuple[int | bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Branches:
    op: Op
    branches: tuple[Code, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """The blocks of an array or map."""

    flags: Flag
    body: Code


@dataclass(frozen=True, slots=True)
class Arranged:
    """Fields in the writer's order, and columns in theirs: the index of a field or a constant."""

    fields: tuple[Code, ...]
    columns: tuple[int | bytes, ...]


Code = tuple[Do | Branches | Loop | Arranged, ...]

NOTHING: Code = ()
NOTE: Code = (Do(Op.NOTE),)
REFUSE: Code = (Do(Op.REFUSE),)

_WALKS: dict[PrimitiveType, Code] = {
    PrimitiveType.NULL: NOTHING,
    PrimitiveType.BOOLEAN: (Do(Op.BOOLEAN),),
    PrimitiveType.INT: (Do(Op.INT),),
    PrimitiveType.LONG: (Do(Op.LONG),),
    PrimitiveType.FLOAT: (Do(Op.FIXED, (4,)),),
    PrimitiveType.DOUBLE: (Do(Op.FIXED, (8,)),),
    PrimitiveType.BYTES: (Do(Op.BYTES),),
    PrimitiveType.STRING: (Do(Op.STRING),),
}

_PROMOTIONS: dict[tuple[PrimitiveType, PrimitiveType], Code] = {
    (PrimitiveType.INT, PrimitiveType.FLOAT): (Do(Op.INT_TO_FLOAT),),
    (PrimitiveType.LONG, PrimitiveType.FLOAT): (Do(Op.LONG_TO_FLOAT),),
    (PrimitiveType.INT, PrimitiveType.DOUBLE): (Do(Op.INT_TO_DOUBLE),),
    (PrimitiveType.LONG, PrimitiveType.DOUBLE): (Do(Op.LONG_TO_DOUBLE),),
    (PrimitiveType.FLOAT, PrimitiveType.DOUBLE): (Do(Op.FLOAT_TO_DOUBLE),),
}


def walk_of(kind: PrimitiveType) -> Code:
    """A value of this type, whatever it says."""
    return _WALKS[kind]


def walked(writer: Primitive, load: Primitive) -> Code:
    """A value whose bytes stay as they are, and that queries of its column can read (`readable`)."""
    logical = load.logical.name if load.logical is not None else ""
    if logical == "decimal":
        return (Do(Op.DECIMAL, (DECIMAL_BYTES_MAX,)),)
    if logical in MILLIS_TIMES and writer.type is PrimitiveType.LONG:
        return (Do(Op.TIMESTAMP, (TIMESTAMP_MS_MAX & 0xFFFFFFFF, TIMESTAMP_MS_MAX >> 32)),)
    return _WALKS[writer.type]


def promoted(writer: PrimitiveType, load: PrimitiveType) -> Code:
    return _PROMOTIONS[writer, load]


def fixed(size: int) -> Code:
    return (Do(Op.FIXED, (size,)),)


def enum(symbols: int) -> Code:
    return (Do(Op.ENUM, (symbols,)),)


def enum_map(rows: Sequence[bytes]) -> Code:
    """`rows` are what stands for each symbol, empty where nothing does."""
    return (Do(Op.ENUM_MAP, (len(rows), *rows)),)


def emit(constant: bytes) -> Code:
    return (Do(Op.EMIT, (constant,)),) if constant else NOTHING


def joined(*codes: Code | None) -> Code | None:
    """One after the other; None when one of them is."""
    known = _all(codes)
    return None if known is None else tuple(step for code in known for step in code)


def union(branches: Sequence[Code | None], *, keeps_index: bool) -> Code | None:
    known = _all(branches)
    return None if known is None else (Branches(Op.UNION if keeps_index else Op.UNION_DROP, known),)


def array(items: Code | None, *, zero_width: bool, rewritten: bool) -> Code | None:
    if items is None:
        return None
    flags = (Flag.ZERO_WIDTH if zero_width else Flag(0)) | (Flag.REWRITTEN if rewritten else Flag(0))
    return (Loop(flags | Flag.WALKED, NOTHING),) if zero_width and not rewritten else (Loop(flags, items),)


def map_of(values: Code | None, *, rewritten: bool) -> Code | None:
    key = _WALKS[PrimitiveType.STRING]
    return None if values is None else (Loop(Flag.REWRITTEN if rewritten else Flag(0), key + values),)


def record(fields: Sequence[tuple[int, Code | None]], columns: Sequence[bytes]) -> Code | None:
    """The writer's fields in their order, each with its column; `columns` are what stands where no field does."""
    codes = _all([code for _, code in fields])
    if codes is None:
        return None
    taken = [column for column, _ in fields]
    field_of = {column: index for index, column in enumerate(taken)}
    if taken == sorted(taken):
        parts = (codes[field_of[i]] if i in field_of else emit(columns[i]) for i in range(len(columns)))
        return tuple(step for part in parts for step in part)
    return (_arranged(codes, taken, columns),)


def _arranged(codes: Sequence[Code], taken: Sequence[int], columns: Sequence[bytes]) -> Arranged:
    """Neighbours that stay neighbours are moved together."""
    groups: list[Code] = []
    first_of: dict[int, int] = {}
    members: set[int] = set()
    for index, column in enumerate(taken):
        members.add(column)
        if index and column == taken[index - 1] + 1:
            groups[-1] += codes[index]
        else:
            first_of[column] = len(groups)
            groups.append(codes[index])
    kept = [i for i in range(len(columns)) if i in first_of or i not in members]
    return Arranged(tuple(groups), tuple(first_of.get(i, columns[i]) for i in kept))


def _all(codes: Iterable[Code | None]) -> tuple[Code, ...] | None:
    found = []
    for code in codes:
        if code is None:
            return None
        found.append(code)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Program:
    """What the core executes: words, and the bytes that they point into."""

    words: tuple[int, ...]
    constants: bytes

    def __str__(self) -> str:
        """One line for each operation: its position, its name, its operands."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        frames, slots = self.words[:2]
        yield f"frames {frames}, slots {slots}"
        at = 2
        while at < len(self.words):
            op = Op(self.words[at])
            operands = self.words[at + 1 : at + 1 + self._operands(at)]
            yield f"{at:5} {op.name.lower()} {self._said(op, operands)}".rstrip()
            at += 1 + len(operands)

    def _operands(self, at: int) -> int:
        match Op(self.words[at]):
            case Op.FIXED | Op.ENUM | Op.DECIMAL | Op.JUMP | Op.MARK:
                return 1
            case Op.TIMESTAMP | Op.EMIT:
                return 2
            case Op.BLOCK:
                return 3
            case Op.NEXT:
                return 4
            case Op.UNION | Op.UNION_DROP:
                return 1 + self.words[at + 1]
            case Op.ENUM_MAP:
                return 1 + 2 * self.words[at + 1]
            case Op.ARRANGE:
                return 3 + 3 * self.words[at + 3]
        return 0

    def _said(self, op: Op, operands: Sequence[int]) -> str:
        match op:
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
                said = (f"slot {column[1]}" if column[0] else self._constant(column[1:]) for column in columns)
                return f"from slot {operands[0]}, {operands[1]} of them: " + ", ".join(said)
        return " ".join(map(str, operands))

    def _constant(self, place: Sequence[int]) -> str:
        return self.constants[place[0] : place[0] + place[1]].hex() or "nothing"


def _flags(flags: int) -> str:
    return "+".join(str(flag.name).lower() for flag in Flag if flag & flags) or "plain"


TIME_UNITS = {TimeUnit.MILLIS: 1, TimeUnit.MICROS: 2, TimeUnit.NANOS: 3, TimeUnit.DAYS: 4}
"""As in `core/core.h`; 0 is no field."""


def assemble(code: Code | None) -> Program | None:
    """The program of a whole message; None when no operation can say it, or it nests deeper than the core has room."""
    if code is None:
        return None
    found = _Assembler()
    found.lay(code, 0, 0)
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

    def lay(self, code: Code, frame: int, slot: int) -> None:
        """Args:
        frame, slot: the first that nothing around the code uses.
        """
        for step in code:
            match step:
                case Do():
                    self.words.append(step.op)
                    for operand in step.operands:
                        self.words += self.place(operand) if isinstance(operand, bytes) else [operand]
                case Branches():
                    self._branches(step, frame, slot)
                case Loop():
                    self._loop(step, frame, slot)
                case Arranged():
                    self._arranged(step, frame, slot)

    def place(self, constant: bytes) -> list[int]:
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
            self.lay(branch, frame, slot)
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
        self.lay(step.body, frame + 1, slot)
        self.words += [Op.NEXT, frame, step.flags, body, block]
        self.words[block + 3] = len(self.words)

    def _arranged(self, step: Arranged, frame: int, slot: int) -> None:
        inside = slot + len(step.fields) + 1
        self.slots = max(self.slots, inside)
        for index, code in enumerate(step.fields):
            self.words += [Op.MARK, slot + index]
            self.lay(code, frame, inside)
        self.words += [Op.ARRANGE, slot, len(step.fields), len(step.columns)]
        for column in step.columns:
            self.words += [0, *self.place(column)] if isinstance(column, bytes) else [1, slot + column, 0]


def packed(words: Sequence[int]) -> bytes:
    """Words as the core reads them."""
    return struct.pack(f"={len(words)}I", *words)
