"""Machine code of `_intrinsics` for numba. This module is imported only where something has to
be compiled."""

from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir
from llvmlite.ir.values import FunctionAttributes
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from storage_core.kernels._cpu import crc_instruction, target_cpu
from storage_core.kernels._intrinsics import (
    LANE_BYTES,
    VECTOR_BYTES,
    VECTORS,
    call_function,
    can_fold,
    copy_bytes,
    crc32c_word,
    factors,
    fold_crc,
    load_word,
    prefetch_byte,
    prefetch_row,
)
from storage_core.kernels._lanes import (
    LANES,
    SIP_HIGH,
    SIP_LAST_ROUNDS,
    SIP_LOW,
    SIP_START,
    hash_lanes,
)

# For what is written in the CPU's own language.
llvm.initialize_native_asmparser()

_WORD: Final = ir.IntType(64)
_VECTOR: Final = ir.VectorType(_WORD, LANES)
_LANE: Final = ir.IntType(32)


@intrinsic
def _crc32c_word(typing_context: Any, crc: Any, word: Any) -> Any:
    signature = types.uint64(types.uint64, types.uint64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _crc_call(builder, *args)

    return signature, generate


def _crc_call(builder: Any, register: Any, word: Any) -> Any:
    """Return the register after a word, by the CPU's instruction."""
    name = str(crc_instruction())
    if name.startswith("llvm.x86"):
        kind = ir.FunctionType(_WORD, [_WORD, _WORD])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [register, word])
    half = ir.IntType(32)
    kind = ir.FunctionType(half, [half, _WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.zext(builder.call(function, [builder.trunc(register, half), word]), _WORD)


@intrinsic
def _load_word(typing_context: Any, buffer: Any, position: Any) -> Any:
    signature = types.uint64(buffer, types.int64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        pointer = builder.gep(array.data, [args[1]])
        pointer = builder.bitcast(pointer, ir.IntType(64).as_pointer())
        word = builder.load(pointer)
        word.align = 1
        return word

    return signature, generate


@intrinsic
def _copy(
    typing_context: Any,
    target: Any,
    target_position: Any,
    source: Any,
    source_position: Any,
    length: Any,
) -> Any:
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        into = context.make_array(sig.args[0])(context, builder, args[0])
        out_of = context.make_array(sig.args[2])(context, builder, args[2])
        cgutils.raw_memcpy(
            builder,
            builder.gep(into.data, [args[1]]),
            builder.gep(out_of.data, [args[3]]),
            args[4],
            1,
        )
        return context.get_dummy_value()

    return signature, generate


def _ask_for(builder: Any, pointer: Any, *, to_write: bool) -> None:
    """Prefetch the bytes at a pointer into the CPU's nearest cache."""
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    keep_close, data_cache = number(3), number(1)
    builder.call(function, [pointer, number(int(to_write)), keep_close, data_cache])


@intrinsic
def _prefetch_row(typing_context: Any, table: Any, row: Any) -> Any:
    signature = types.void(table, types.int64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        row_stride = cgutils.unpack_tuple(builder, array.strides, 2)[0]
        start = builder.bitcast(array.data, ir.IntType(8).as_pointer())
        row_start = builder.mul(args[1], row_stride)
        row_last = builder.add(row_start, builder.sub(row_stride, _WORD(1)))
        # Rows of three words: nearly every second one lies in two lines of a cache.
        for place in (row_start, row_last):
            _ask_for(builder, builder.gep(start, [place]), to_write=True)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _prefetch_byte(typing_context: Any, buffer: Any, position: Any) -> Any:
    signature = types.void(buffer, types.int64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        _ask_for(builder, builder.gep(array.data, [args[1]]), to_write=False)
        return context.get_dummy_value()

    return signature, generate


def _in_each_lane(number: int) -> Any:
    return ir.Constant(_VECTOR, [number] * LANES)


def _sip_round(builder: Any, v: list[Any]) -> None:
    """Replace the four vectors of SipHash's state by those after one round."""

    def rotated(lanes: Any, bits: int) -> Any:
        up = builder.shl(lanes, _in_each_lane(bits))
        return builder.or_(up, builder.lshr(lanes, _in_each_lane(64 - bits)))

    v[0] = builder.add(v[0], v[1])
    v[1] = builder.xor(rotated(v[1], 13), v[0])
    v[0] = rotated(v[0], 32)
    v[2] = builder.add(v[2], v[3])
    v[3] = builder.xor(rotated(v[3], 16), v[2])
    v[0] = builder.add(v[0], v[3])
    v[3] = builder.xor(rotated(v[3], 21), v[0])
    v[2] = builder.add(v[2], v[1])
    v[1] = builder.xor(rotated(v[1], 17), v[2])
    v[2] = rotated(v[2], 32)


@intrinsic
def _hash_lanes(  # as hash_lanes
    typing_context: Any,
    data: Any,
    start: Any,
    length: Any,
    first: Any,
    words: Any,
    key_low: Any,
    key_high: Any,
) -> Any:
    word = types.uint64
    signature = types.void(data, start, length, types.int64, types.int64, word, word)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(sig.args[:3], args[:3], strict=True)
        ]
        _, _, _, first_lane, word_count, low, high = args
        places = [
            builder.bitcast(builder.gep(array.data, [first_lane]), _VECTOR.as_pointer())
            for array in arrays[1:]
        ]
        starts, lengths = (builder.load(place, align=8) for place in places)
        messages = [
            builder.gep(arrays[0].data, [builder.extract_element(starts, _LANE(lane))])
            for lane in range(LANES)
        ]

        def words_at(position: Any) -> Any:
            words = ir.Constant(_VECTOR, ir.Undefined)
            for lane, message in enumerate(messages):
                pointer = builder.bitcast(builder.gep(message, [position]), _WORD.as_pointer())
                words = builder.insert_element(words, builder.load(pointer, align=1), _LANE(lane))
            return words

        def take(state: list[Any], words: Any) -> None:
            v = [builder.load(place) for place in state]
            v[3] = builder.xor(v[3], words)
            _sip_round(builder, v)
            v[0] = builder.xor(v[0], words)
            for lanes, place in zip(v, state, strict=True):
                builder.store(lanes, place)

        state = []
        for begin, half in zip(SIP_START, (low, high, low, high), strict=True):
            lanes = ir.Constant(_VECTOR, ir.Undefined)
            for lane in range(LANES):
                lanes = builder.insert_element(lanes, half, _LANE(lane))
            place = cgutils.alloca_once(builder, _VECTOR)
            builder.store(builder.xor(lanes, _in_each_lane(begin)), place)
            state.append(place)
        with cgutils.for_range(builder, word_count) as loop:
            take(state, words_at(builder.mul(loop.index, _WORD(8))))
        rest = builder.shl(builder.and_(lengths, _in_each_lane(7)), _in_each_lane(3))
        above = builder.shl(_in_each_lane(2**64 - 1), rest)
        last = builder.and_(words_at(builder.mul(word_count, _WORD(8))), builder.not_(above))
        take(state, builder.or_(last, builder.shl(lengths, _in_each_lane(56))))
        v = [builder.load(place) for place in state]
        for number, mark, place in ((2, SIP_LOW, places[0]), (1, SIP_HIGH, places[1])):
            v[number] = builder.xor(v[number], _in_each_lane(mark))
            for _ in range(SIP_LAST_ROUNDS):
                _sip_round(builder, v)
            mixed = builder.xor(builder.xor(v[0], v[1]), builder.xor(v[2], v[3]))
            builder.store(mixed, place, align=8)
        return context.get_dummy_value()

    return signature, generate


# Where folding is possible: it ends with this CPU's instruction for CRC-32C.
_IS_X86: Final = (crc_instruction() or "").startswith("llvm.x86")
# What code that folds may have beside what all code here may have.
_FOLDING_FEATURES: Final = ("avx512f", "pclmul", "vpclmulqdq")
# Where the CPU says whether it has them: the leaf of CPUID, the register, the bit.
_SAVED_BY_SYSTEM: Final = (1, 2, 27)
_AVX512F: Final = (7, 1, 16)
_VPCLMULQDQ: Final = (7, 2, 10)
# Registers of vectors that the system has to keep for a process: bits of XCR0.
_ALL_VECTORS: Final = 0xE6
_HALF_WORD: Final = ir.IntType(32)
_UNKNOWN, _NO, _YES = range(3)


def _cpu_says(builder: Any) -> Any:
    """Return whether this CPU and its system have what `_fold` needs, as one bit."""
    four = ir.LiteralStructType([_HALF_WORD] * 4)
    kind = ir.FunctionType(four, [_HALF_WORD, _HALF_WORD])
    places = "={eax},={ebx},={ecx},={edx},{eax},{ecx}"
    ask = ir.InlineAsm(kind, "cpuid", places, side_effect=True)

    def register(leaf: int, number: int) -> Any:
        answer = builder.call(ask, [_HALF_WORD(leaf), _HALF_WORD(0)])
        return builder.extract_value(answer, number)

    def has(bit: int, value: Any) -> Any:
        return builder.trunc(builder.lshr(value, _HALF_WORD(bit)), ir.IntType(1))

    answer = cgutils.alloca_once_value(builder, cgutils.false_bit)
    highest_leaf = register(0, 0)
    leaf, number, bit = _SAVED_BY_SYSTEM
    can_ask = builder.and_(
        builder.icmp_unsigned(">=", highest_leaf, _HALF_WORD(_AVX512F[0])),
        has(bit, register(leaf, number)),
    )
    with builder.if_then(can_ask):
        pair = ir.LiteralStructType([_HALF_WORD] * 2)
        kind = ir.FunctionType(pair, [_HALF_WORD])
        read = ir.InlineAsm(kind, "xgetbv", "={eax},={edx},{ecx}", side_effect=True)
        saved = builder.extract_value(builder.call(read, [_HALF_WORD(0)]), 0)
        vectors = builder.and_(saved, _HALF_WORD(_ALL_VECTORS))
        says = builder.icmp_unsigned("==", vectors, _HALF_WORD(_ALL_VECTORS))
        for leaf, number, bit in (_AVX512F, _VPCLMULQDQ):
            says = builder.and_(says, has(bit, register(leaf, number)))
        builder.store(says, answer)
    return builder.load(answer)


@intrinsic
def _can_fold(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kept = ir.GlobalVariable(
            builder.module, _HALF_WORD, builder.module.get_unique_name("pylog.can_fold")
        )
        kept.linkage, kept.initializer = "internal", _HALF_WORD(_UNKNOWN)
        with builder.if_then(
            builder.icmp_unsigned("==", builder.load(kept), _HALF_WORD(_UNKNOWN)), likely=False
        ):
            says = builder.select(_cpu_says(builder), _HALF_WORD(_YES), _HALF_WORD(_NO))
            builder.store(says, kept)
        return builder.icmp_unsigned("==", builder.load(kept), _HALF_WORD(_YES))

    return types.boolean(), generate


class _AnyAttributes(FunctionAttributes):  # type: ignore[misc]  # llvmlite has no types
    """Attributes of a function, those among them that llvmlite does not know."""

    def add(self, name: str) -> None:
        set.add(self, name)


def _write_fold(module: ir.Module, name: str) -> ir.Function:
    """Write `fold_crc` as a function: its address, how many vectors, the register."""
    byte = ir.IntType(8)
    lanes = VECTOR_BYTES // LANE_BYTES
    kind = ir.FunctionType(_WORD, [byte.as_pointer(), _WORD, _WORD])
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    features = ",".join(f"+{each}" for each in (*sorted(target_cpu().features), *_FOLDING_FEATURES))
    function.attributes = _AnyAttributes([f'"target-features"="{features}"'])
    data, vectors, register = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    multiply = cgutils.get_or_insert_function(
        module, ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, byte]), "llvm.x86.pclmulqdq.512"
    )

    def vector_at(number: Any) -> Any:
        place = builder.gep(data, [builder.mul(number, _WORD(VECTOR_BYTES))])
        return builder.load(builder.bitcast(place, _VECTOR.as_pointer()), align=1)

    def moved(vector: Any, by: list[int]) -> Any:
        """Return the products of all halves with factors, those of a lane added."""
        factor = ir.Constant(_VECTOR, by)
        first, second = (
            builder.call(multiply, [vector, factor, byte(half)]) for half in (0x00, 0x11)
        )
        return builder.xor(first, second)

    sums = [cgutils.alloca_once_value(builder, vector_at(_WORD(each))) for each in range(VECTORS)]
    nothing = ir.Constant(_VECTOR, [0] * LANES)
    begun = builder.insert_element(nothing, register, _LANE(0))
    builder.store(builder.xor(builder.load(sums[0]), begun), sums[0])
    far, near = ([*factors(each * VECTOR_BYTES)] * lanes for each in (VECTORS, 1))
    rounds = builder.udiv(vectors, _WORD(VECTORS))
    with cgutils.for_range_slice(builder, _WORD(1), rounds, _WORD(1)) as (turn, _):
        first = builder.mul(turn, _WORD(VECTORS))
        for number, place in enumerate(sums):
            vector = vector_at(builder.add(first, _WORD(number)))
            builder.store(builder.xor(moved(builder.load(place), far), vector), place)
    last = builder.load(sums[0])
    for place in sums[1:]:
        last = builder.xor(moved(last, near), builder.load(place))
    builder.store(last, sums[0])
    taken = builder.mul(rounds, _WORD(VECTORS))
    with cgutils.for_range_slice(builder, taken, vectors, _WORD(1)) as (number, _):
        last = builder.xor(moved(builder.load(sums[0]), near), vector_at(number))
        builder.store(last, sums[0])
    last = builder.load(sums[0])
    by = [factor for lane in range(lanes - 1, 0, -1) for factor in factors(lane * LANE_BYTES)]
    before = moved(last, [*by, 0, 0])
    result = _WORD(0)
    for half in (0, 1):
        word = builder.extract_element(last, _LANE(2 * lanes - 2 + half))
        for lane in range(lanes - 1):
            word = builder.xor(word, builder.extract_element(before, _LANE(2 * lane + half)))
        result = _crc_call(builder, result, word)
    builder.ret(result)
    return function


@intrinsic
def _fold(typing_context: Any, register: Any, buffer: Any, start: Any, end: Any) -> Any:
    signature = types.uint64(types.uint64, buffer, types.int64, types.int64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[1])(context, builder, args[1])
        name = "pylog.fold_crc"
        function = builder.module.globals.get(name) or _write_fold(builder.module, name)
        vectors = builder.udiv(builder.sub(args[3], args[2]), _WORD(VECTOR_BYTES))
        return builder.call(function, [builder.gep(array.data, [args[2]]), vectors, args[0]])

    return signature, generate


@intrinsic
def _call(
    typing_context: Any, address: Any, first: Any, second: Any, third: Any, fourth: Any, fifth: Any
) -> Any:
    word = types.int64
    signature = word(word, word, word, word, word, word)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = ir.IntType(64)
        kind = ir.FunctionType(number, [number] * 5)
        function = builder.inttoptr(args[0], kind.as_pointer())
        return builder.call(function, args[1:])

    return signature, generate


@overload(crc32c_word, inline="always", strict=False)
def _overload_crc32c_word(crc: Any, word: Any) -> Any:
    return lambda crc, word: _crc32c_word(crc, word)


@overload(load_word, inline="always", strict=False)
def _overload_load_word(buffer: Any, position: Any) -> Any:
    return lambda buffer, position: _load_word(buffer, position)


@overload(copy_bytes, inline="always", strict=False)
def _overload_copy_bytes(
    target: Any,
    target_position: Any,
    source: Any,
    source_position: Any,
    length: Any,
) -> Any:
    def copy(
        target: Any,
        target_position: Any,
        source: Any,
        source_position: Any,
        length: Any,
    ) -> None:
        _copy(target, target_position, source, source_position, length)

    return copy


@overload(prefetch_row, inline="always", strict=False)
def _overload_prefetch_row(table: Any, row: Any) -> Any:
    return lambda table, row: _prefetch_row(table, row)


@overload(prefetch_byte, inline="always", strict=False)
def _overload_prefetch_byte(buffer: Any, position: Any) -> Any:
    return lambda buffer, position: _prefetch_byte(buffer, position)


@overload(hash_lanes, inline="always", strict=False)
def _overload_hash_lanes(  # as hash_lanes
    data: Any, start: Any, length: Any, first: Any, words: Any, key_low: Any, key_high: Any
) -> Any:
    return lambda data, start, length, first, words, key_low, key_high: _hash_lanes(
        data, start, length, first, words, key_low, key_high
    )


@overload(can_fold, inline="always", strict=False)
def _overload_can_fold() -> Any:
    return (lambda: _can_fold()) if _IS_X86 else can_fold


@overload(fold_crc, inline="always", strict=False)
def _overload_fold_crc(register: Any, buffer: Any, start: Any, end: Any) -> Any:
    if _IS_X86:
        return lambda register, buffer, start, end: _fold(register, buffer, start, end)
    return fold_crc


@overload(call_function, inline="always", strict=False)
def _overload_call_function(
    address: Any, first: Any, second: Any, third: Any, fourth: Any, fifth: Any
) -> Any:
    return lambda address, first, second, third, fourth, fifth: _call(
        address, first, second, third, fourth, fifth
    )
