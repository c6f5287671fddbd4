"""From a kernel to machine code that Python calls without numba.

Numba compiles the function itself. What it puts around it, to call it from Python, needs numba at
run time, and to import that takes longer than most commands. So each kernel gets an *entry* here
instead: a plain C function over addresses, lengths and numbers (`_binding`), compiled together with
the kernel, and words that describe its arguments and results. `_native` loads both.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, compiler_lock
from numba.np.arrayobj import populate_array

from storage_core.kernels import _overloads  # noqa: F401  # what an intrinsic is in machine code
from storage_core.kernels._binding import (
    ARRAY,
    MOST_DIMENSIONS,
    SIGNED,
    TRUTH,
    UNSIGNED,
    VALUE_WORDS,
)
from storage_core.kernels._native import signature_name, signature_words

_INT64: Final = ir.IntType(64)
_WORDS: Final = _INT64.as_pointer()

# The letters of a type in `struct`, native on 64-bit Linux, where long and long long are one.
_LETTERS: Final = {
    types.uint8: "BB",
    types.int32: "ii",
    types.uint32: "II",
    types.int64: "lq",
    types.uint64: "LQ",
}
# What an entry may ask of the process that it is loaded into.
_OUTSIDE: Final = frozenset({"memcpy", "memset", "memmove", "memcmp"})
# No kernel makes an array: numba need not count references, which it does at each use of one by a
# call that entries have no use for. Its type hints do not know the option.
_OPTIONS: Final[dict[str, Any]] = {"_nrt": False}


class NoEntryError(Exception):
    """No entry exists for this signature of a kernel.

    A kernel of such a signature is for other kernels to call: Python reaches it by numba.
    """


def dispatcher_of(function: Callable[..., Any], *, inline: bool) -> Any:
    """Return numba's dispatcher of a kernel, for calls by other kernels."""
    return numba.njit(nogil=True, error_model="numpy", forceinline=inline, **_OPTIONS)(function)


def compile_entry(dispatcher: Any, arguments: Sequence[Any], name: str) -> bytes:
    """Compile a kernel for argument types; return its entry's object file.

    Raises:
        NoEntryError: There are arguments or results that no entry has.
        numba.core.errors.NumbaError: The kernel cannot be compiled.
    """
    signature = tuple(numba.typeof(argument) for argument in arguments)
    if any(map(_is_unaligned, arguments)) or not all(map(_is_possible, _flat(signature))):
        raise NoEntryError
    dispatcher.compile(signature)
    compiled = dispatcher.overloads[signature]
    results = _results_of(compiled.signature.return_type)
    with compiler_lock.global_compiler_lock:
        context = compiled.target_context
        written = ir.Module(name)
        _write_entry(context, written, compiled.fndesc, name)
        _write_signature(written, compiled.signature, results, name)
        module = llvm.parse_assembly(str(written))
        _, _, kernel = compiled.library.serialize_using_bitcode()
        module.link_in(llvm.parse_bitcode(kernel))
        return _object_of(module, name, context.codegen())


def _object_of(module: Any, name: str, codegen: Any) -> bytes:
    """Return a module's machine code, with its entry as the only export.

    Raises:
        NoEntryError: The code needs something that a process may not have.
    """
    for function in module.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = llvm.Linkage.internal
    # The kernel is optimized already: a second time its loops would be unrolled once more.
    target = codegen._tm  # noqa: SLF001  # what numba compiles for
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options())
    builder.getFunctionPassManager().run(module.get_function(name), builder)
    unused = llvm.create_new_module_pass_manager()
    unused.add_global_dead_code_eliminate_pass()
    unused.run(module, builder)
    for function in module.functions:
        is_outside = function.is_declaration and not function.name.startswith("llvm.")
        if is_outside and function.name not in _OUTSIDE:
            raise NoEntryError
    if any(variable.is_declaration for variable in module.global_variables):
        raise NoEntryError
    return bytes(target.emit_object(module))


def _flat(signature: Sequence[Any]) -> list[Any]:
    """Return the argument types of an entry, named tuples split into fields."""
    return [part for kind in signature for part in _parts_of(kind)]


def _parts_of(kind: Any) -> tuple[Any, ...]:
    return tuple(kind.types) if isinstance(kind, types.BaseNamedTuple) else (kind,)


def _is_unaligned(argument: Any) -> bool:
    """Whether an array is unaligned, which numba's types do not tell."""
    if isinstance(argument, tuple):
        return any(map(_is_unaligned, argument))
    return isinstance(argument, np.ndarray) and not argument.flags.aligned


def _is_possible(kind: Any) -> bool:
    if isinstance(kind, types.Array):
        is_known = kind.dtype in _LETTERS and kind.ndim <= MOST_DIMENSIONS
        return is_known and kind.layout in "CA"
    return kind in {types.int64, types.uint64, types.boolean}


def _results_of(kind: Any) -> list[Any]:
    """Return the types of a kernel's results; none for no result."""
    if kind == types.none:
        return []
    results = list(kind.types) if type(kind) in {types.UniTuple, types.Tuple} else [kind]
    if not all(isinstance(result, types.Integer) for result in results):
        raise NoEntryError
    return results


def _write_entry(context: Any, module: ir.Module, kernel: Any, name: str) -> None:
    """Write the C entry: unpack arguments, call the kernel, pack its results."""
    function = ir.Function(module, ir.FunctionType(_INT64, [_WORDS, _WORDS]), name=name)
    values, results = function.args
    build = ir.IRBuilder(function.append_basic_block())
    words = iter(range(0, VALUE_WORDS * len(_flat(kernel.argtypes)), VALUE_WORDS))
    arguments = []
    for kind in kernel.argtypes:
        parts = [
            _argument_of(context, build, build.gep(values, [_INT64(next(words))]), part)
            for part in _parts_of(kind)
        ]
        is_tuple = isinstance(kind, types.BaseNamedTuple)
        arguments.append(context.make_tuple(build, kind, parts) if is_tuple else parts[0])
    callee = context.declare_function(module, kernel)
    status, returned = context.call_conv.call_function(
        build, callee, kernel.restype, kernel.argtypes, arguments, attrs=("noinline",)
    )
    with build.if_then(status.is_error, likely=False):
        build.ret(_INT64(1))
    is_tuple = isinstance(kernel.restype, types.BaseTuple)
    for index, kind in enumerate(_results_of(kernel.restype)):
        number = build.extract_value(returned, index) if is_tuple else returned
        extend = build.sext if kind.signed else build.zext
        build.store(extend(number, _INT64), build.gep(results, [_INT64(index)]))
    build.ret(_INT64(0))
    # Arrays of entries are the caller's: numba's runtime never has to free one.
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])
    destructor = ir.Function(module, kind, name="NRT_MemInfo_call_dtor")
    ir.IRBuilder(destructor.append_basic_block()).ret_void()


def _argument_of(context: Any, build: ir.IRBuilder, value: ir.Value, kind: Any) -> ir.Value:
    """Return a kernel's argument, made from the words of the binding."""
    if kind == types.boolean:
        return build.icmp_unsigned("!=", build.load(value), _INT64(0))
    if not isinstance(kind, types.Array):
        return build.load(value)
    array = context.make_array(kind)(context, build)
    populate_array(
        array,
        data=build.inttoptr(build.load(value), array.data.type),
        shape=_packed(build, value, 1, kind.ndim),
        strides=_packed(build, value, 1 + MOST_DIMENSIONS, kind.ndim),
        itemsize=_INT64(kind.dtype.bitwidth // 8),
        meminfo=None,  # the caller holds the array for as long as the kernel runs
    )
    return array._getvalue()  # noqa: SLF001  # numba's name for it


def _packed(build: ir.IRBuilder, value: ir.Value, at: int, count: int) -> ir.Value:
    words = [build.load(build.gep(value, [_INT64(at + index)])) for index in range(count)]
    return cgutils.pack_array(build, words, _INT64)


def _write_signature(module: ir.Module, signature: Any, results: list[Any], name: str) -> None:
    words = signature_words(
        [_kind_of(kind) for kind in _flat(signature.args)],
        [SIGNED if kind.signed else UNSIGNED for kind in results],
        is_tuple=isinstance(signature.return_type, types.BaseTuple),
    )
    kind = ir.ArrayType(_INT64, len(words))
    written = ir.GlobalVariable(module, kind, signature_name(name))
    written.initializer, written.global_constant = kind(words), True


def _kind_of(kind: Any) -> tuple[int, ...]:
    if isinstance(kind, types.Array):
        letter, other = map(ord, _LETTERS[kind.dtype])
        return ARRAY, letter, other, kind.ndim, kind.layout == "C", not kind.mutable
    if kind == types.boolean:
        return (TRUTH,)
    return (SIGNED if kind.signed else UNSIGNED,)
