"""The machine code of `_intrinsics`, for numba; imported where something has to be compiled."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from storage_core.kernels._cpu import crc_instruction
from storage_core.kernels._intrinsics import (
    call_function,
    copy_bytes,
    crc32c_word,
    load_word,
    prefetch_bytes,
    prefetch_row,
)


@intrinsic
def _crc32c_word(typing_context: Any, crc: Any, word: Any) -> Any:
    signature = types.uint64(types.uint64, types.uint64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        name = str(crc_instruction())
        if name.startswith("llvm.x86"):
            word_type = ir.IntType(64)
            kind = ir.FunctionType(word_type, [word_type, word_type])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)
        half, word_type = ir.IntType(32), ir.IntType(64)
        kind = ir.FunctionType(half, [half, word_type])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        result = builder.call(function, [builder.trunc(args[0], half), args[1]])
        return builder.zext(result, word_type)

    return signature, generate


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


@intrinsic
def _prefetch(typing_context: Any, table: Any, row: Any) -> Any:
    signature = types.void(table, types.int64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        row_stride = cgutils.unpack_tuple(builder, array.strides, 2)[0]
        byte = ir.IntType(8).as_pointer()
        start = builder.bitcast(array.data, byte)
        pointer = builder.gep(start, [builder.mul(args[1], row_stride)])
        _ask_for(builder, pointer, for_writing=True)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _prefetch_bytes(typing_context: Any, buffer: Any, position: Any) -> Any:
    signature = types.void(buffer, types.int64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        byte = ir.IntType(8).as_pointer()
        pointer = builder.gep(builder.bitcast(array.data, byte), [args[1]])
        _ask_for(builder, pointer, for_writing=False)
        return context.get_dummy_value()

    return signature, generate


def _ask_for(builder: Any, pointer: Any, *, for_writing: bool) -> None:
    """Write the instruction that brings a line into the nearest cache."""
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    keep_close, data_cache = number(3), number(1)
    builder.call(function, [pointer, number(int(for_writing)), keep_close, data_cache])


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
    return lambda table, row: _prefetch(table, row)


@overload(prefetch_bytes, inline="always", strict=False)
def _overload_prefetch_bytes(buffer: Any, position: Any) -> Any:
    return lambda buffer, position: _prefetch_bytes(buffer, position)


@overload(call_function, inline="always", strict=False)
def _overload_call_function(
    address: Any, first: Any, second: Any, third: Any, fourth: Any, fifth: Any
) -> Any:
    return lambda address, first, second, third, fourth, fifth: _call(
        address, first, second, third, fourth, fifth
    )
