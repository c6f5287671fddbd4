"""What a CPU does in one instruction, behind plain functions with a plain twin.

Called from Python these functions run as written; called from a kernel they become the
instruction. An intrinsic that the CPU lacks would abort the whole process, so CRC-32C by
instruction is chosen at import, by machine and CPU features, with the table as the other way.
"""

import ctypes
import platform
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core import config as numba_config
from numba.extending import intrinsic, overload
from numpy.typing import NDArray


def _crc_instruction() -> str | None:
    """Return the LLVM name of this CPU's CRC-32C instruction for 8 bytes, or None."""
    if numba_config.CPU_NAME or numba_config.CPU_FEATURES:
        # Numba was told to compile for another CPU than this one.
        features = str(numba_config.CPU_FEATURES or "").split(",")
        has = {name[1:] for name in features if name.startswith("+")}
    else:
        has = {name for name, present in llvm.get_host_cpu_features().items() if present}
    machine = platform.machine().lower()
    if machine in {"x86_64", "amd64"} and "sse4.2" in has:
        return "llvm.x86.sse42.crc32.64.64"
    if machine in {"aarch64", "arm64"} and "crc" in has:
        return "llvm.aarch64.crc32cx"
    return None


CRC_INSTRUCTION: Final = _crc_instruction()
HAS_CRC_INSTRUCTION: Final = CRC_INSTRUCTION is not None


@intrinsic
def _crc32c_word(typing_context: Any, crc: Any, word: Any) -> Any:
    signature = types.uint64(types.uint64, types.uint64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        name = str(CRC_INSTRUCTION)
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
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        for_writing, keep_close, data_cache = number(1), number(3), number(1)
        builder.call(function, [pointer, for_writing, keep_close, data_cache])
        return context.get_dummy_value()

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


def crc32c_word(crc: int, word: int) -> int:
    """Return the CRC-32C register after 8 more bytes, given as a little-endian word."""
    for _ in range(8):
        crc ^= word & 0xFF
        word >>= 8
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc


@overload(crc32c_word, inline="always", strict=False)
def _overload_crc32c_word(crc: Any, word: Any) -> Any:
    return lambda crc, word: _crc32c_word(crc, word)


def load_word(buffer: NDArray[np.uint8], position: int) -> int:
    """Return the 8 bytes at position as a little-endian word; the caller has checked the bounds."""
    return int.from_bytes(buffer[position : position + 8].tobytes(), "little")


@overload(load_word, inline="always", strict=False)
def _overload_load_word(buffer: Any, position: Any) -> Any:
    return lambda buffer, position: _load_word(buffer, position)


def copy_bytes(
    target: NDArray[np.uint8],
    target_position: int,
    source: NDArray[np.uint8],
    source_position: int,
    length: int,
) -> None:
    """Copy length bytes between two buffers; the caller has checked the bounds of both."""
    target[target_position : target_position + length] = source[
        source_position : source_position + length
    ]


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


def prefetch_row(table: NDArray[np.uint64], row: int) -> None:
    """Ask for a row of a table that will be wanted soon; changes nothing but speed."""


@overload(prefetch_row, inline="always", strict=False)
def _overload_prefetch_row(table: Any, row: Any) -> Any:
    return lambda table, row: _prefetch(table, row)


# Here the first integers and pointers travel in a register of 64 bits each, and a function looks at
# as many as it has.
CAN_CALL: Final = platform.machine().lower() in {"x86_64", "amd64", "aarch64", "arm64"}


def call_function(
    address: int, first: int, second: int, third: int, fourth: int, fifth: int
) -> int:
    """Call a C function of at most five integers and pointers; the caller answers for all of them.

    Of a function that returns less than 64 bits the upper ones of the result mean nothing.
    """
    word = ctypes.c_int64
    function = ctypes.CFUNCTYPE(word, word, word, word, word, word)(int(address))
    result: int = function(int(first), int(second), int(third), int(fourth), int(fifth))
    return result


@overload(call_function, inline="always", strict=False)
def _overload_call_function(
    address: Any, first: Any, second: Any, third: Any, fourth: Any, fifth: Any
) -> Any:
    return lambda address, first, second, third, fourth, fifth: _call(
        address, first, second, third, fourth, fifth
    )
