"""From a kernel to machine code that Python calls without numba.

Numba compiles the function itself. What it puts around it, to call it from Python, needs numba at
run time, and to import that takes longer than most commands. So each kernel gets an *entry* here
instead: a C function of CPython's fast calling convention, compiled together with the kernel. It
reads arrays and numbers where NumPy's and Python's stable ABI have them, calls the kernel without
the interpreter lock, and makes the result.

An entry needs from outside nothing but a few functions of CPython. `_native` loads it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils, compiler_lock
from numba.np.arrayobj import populate_array

from storage_core.kernels import _overloads  # noqa: F401  # what an intrinsic is in machine code
from storage_core.kernels._native import Fact

_BYTE: Final = ir.IntType(8)
_POINTER: Final = _BYTE.as_pointer()
_INT32: Final = ir.IntType(32)
_INT64: Final = ir.IntType(64)

# Where CPython's objects, and NumPy's of every version since 1.0, have their fields; 64 bits.
_TYPE_AT: Final = 8
_TUPLE_ITEMS_AT: Final = 24
_SCALAR_VALUE_AT: Final = 16
_ARRAY_DATA_AT: Final = 16
_ARRAY_NDIM_AT: Final = 24
_ARRAY_SHAPE_AT: Final = 32
_ARRAY_STRIDES_AT: Final = 40
_ARRAY_DTYPE_AT: Final = 56
_ARRAY_FLAGS_AT: Final = 64
_DTYPE_LETTER_AT: Final = 25
_DTYPE_ORDER_AT: Final = 26
_C_CONTIGUOUS: Final = 0x1
_ALIGNED: Final = 0x100
_WRITEABLE: Final = 0x400

# NumPy's letters of a type on 64-bit Linux, where long and long long are one.
_LETTERS: Final = {
    types.uint8: "B",
    types.int32: "i",
    types.uint32: "I",
    types.int64: "lq",
    types.uint64: "LQ",
}
_SIGNED_RESULT: Final = "PyLong_FromLongLong"
_UNSIGNED_RESULT: Final = "PyLong_FromUnsignedLongLong"
# What an entry may ask of the process that it is loaded into.
_OUTSIDE: Final = frozenset(
    {
        *("PyErr_Clear", "PyErr_Occurred", "PyErr_SetString", "PyEval_RestoreThread"),
        *("PyEval_SaveThread", "PyLong_AsLongLong", "PyTuple_New", "PyTuple_SetItem"),
        *("Py_IncRef", _SIGNED_RESULT, _UNSIGNED_RESULT),
        *("memcpy", "memset", "memmove", "memcmp"),
    }
)
# No kernel makes an array: numba need not count references, which it does at each use of one by a
# call that entries have no use for. Its type hints do not know the option.
_OPTIONS: Final[dict[str, Any]] = {"_nrt": False}
_OUT_OF_RANGE: Final = "a kernel left the range of an array"


class NoEntryError(Exception):
    """A kernel of this signature is for other kernels to call: Python reaches it by numba."""


def dispatcher_of(function: Callable[..., Any], *, inline: bool) -> Any:
    """Return numba's own form of a kernel, by which other kernels call it."""
    return numba.njit(nogil=True, error_model="numpy", forceinline=inline, **_OPTIONS)(function)


def compile_entry(dispatcher: Any, arguments: Sequence[Any], name: str) -> bytes:
    """Compile a kernel for arguments of certain types; return an object file with its entry.

    Args:
        dispatcher: As of ``dispatcher_of``.
        arguments: Of these types.
        name: Symbol of the entry.

    Raises:
        NoEntryError: There are arguments or results that no entry has.
        numba.core.errors.NumbaError: The kernel cannot be compiled.
    """
    signature = tuple(numba.typeof(argument) for argument in arguments)
    if not all(map(_is_possible, signature)):
        raise NoEntryError
    dispatcher.compile(signature)
    compiled = dispatcher.overloads[signature]
    results = _results_of(compiled.signature.return_type)
    with compiler_lock.global_compiler_lock:
        context = compiled.target_context
        written = ir.Module(name)
        _Entry(context, written, compiled.fndesc, name).build(results)
        module = llvm.parse_assembly(str(written))
        _, _, kernel = compiled.library.serialize_using_bitcode()
        module.link_in(llvm.parse_bitcode(kernel))
        return _object_of(module, name, context.codegen())


def _object_of(module: Any, name: str, codegen: Any) -> bytes:
    """Return the machine code of a module, of which only the entry is seen from outside.

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


def _is_possible(kind: Any) -> bool:
    if isinstance(kind, types.Array):
        return kind.dtype in _LETTERS and kind.aligned and kind.layout in "CA"
    return kind in {types.int64, types.uint64, types.boolean}


def _results_of(kind: Any) -> list[Any]:
    """Return the types of a kernel's results; none for no result."""
    if kind == types.none:
        return []
    results = list(kind.types) if type(kind) in {types.UniTuple, types.Tuple} else [kind]
    if not all(isinstance(result, types.Integer) for result in results):
        raise NoEntryError
    return results


class _Entry:
    """The code of one entry, written block by block."""

    def __init__(self, context: Any, module: ir.Module, kernel: Any, name: str) -> None:
        self._context, self._module, self._kernel = context, module, kernel
        kind = ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _INT64])
        function = ir.Function(module, kind, name=name)
        self._facts, self._arguments, self._count = function.args
        self._function = function
        self._builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._mismatch = function.append_basic_block("mismatch")
        with self._builder.goto_block(self._mismatch):
            self._builder.ret(self._kept(Fact.MISMATCH))
        self._define_no_destructor()

    def _define_no_destructor(self) -> None:
        """Arrays of entries are the caller's: numba's runtime never has to free one."""
        kind = ir.FunctionType(ir.VoidType(), [_POINTER])
        function = ir.Function(self._module, kind, name="NRT_MemInfo_call_dtor")
        ir.IRBuilder(function.append_basic_block()).ret_void()

    def build(self, results: list[Any]) -> None:
        """Write the whole entry."""
        build, kinds = self._builder, self._kernel.argtypes
        self._go_on_if(build.icmp_signed("==", self._count, _INT64(len(kinds))))
        values = []
        for index, kind in enumerate(kinds):
            argument = build.load(build.gep(self._arguments, [_INT64(index)]))
            values.append(self._value_of(argument, kind))
        function = self._context.declare_function(self._module, self._kernel)
        thread = build.call(self._python("PyEval_SaveThread", _POINTER), [])
        status, returned = self._context.call_conv.call_function(
            build, function, self._kernel.restype, kinds, values, attrs=("noinline",)
        )
        build.call(self._python("PyEval_RestoreThread", ir.VoidType(), _POINTER), [thread])
        with build.if_then(status.is_error):
            raise_error = self._python("PyErr_SetString", ir.VoidType(), _POINTER, _POINTER)
            text = self._context.insert_const_string(self._module, _OUT_OF_RANGE)
            build.call(raise_error, [self._fact(Fact.INDEX_ERROR), text])
            build.ret(_POINTER(None))
        build.ret(self._result_of(returned, results))

    def _value_of(self, argument: ir.Value, kind: Any) -> ir.Value:
        if isinstance(kind, types.Array):
            return self._array_of(argument, kind)
        if kind == types.boolean:
            self._go_on_if(self._is_a(argument, Fact.BOOL))
            return self._builder.icmp_unsigned("==", argument, self._fact(Fact.TRUE))
        return self._number_of(argument, kind)

    def _array_of(self, argument: ir.Value, kind: Any) -> ir.Value:
        build = self._builder
        self._go_on_if(self._is_a(argument, Fact.ARRAY))
        rank = self._field(argument, _ARRAY_NDIM_AT, _INT32)
        self._go_on_if(build.icmp_signed("==", rank, _INT32(kind.ndim)))
        # An array without gaps is for code that knows of none.
        needed = _ALIGNED | (_WRITEABLE if kind.mutable else 0)
        wanted = needed | (_C_CONTIGUOUS if kind.layout == "C" else 0)
        flags = self._field(argument, _ARRAY_FLAGS_AT, _INT32)
        flags = build.and_(flags, _INT32(needed | _C_CONTIGUOUS))
        self._go_on_if(build.icmp_signed("==", flags, _INT32(wanted)))
        dtype = self._field(argument, _ARRAY_DTYPE_AT, _POINTER)
        self._go_on_if(self._is_one_of(self._field(dtype, _DTYPE_ORDER_AT, _BYTE), "=|"))
        letter = self._field(dtype, _DTYPE_LETTER_AT, _BYTE)
        self._go_on_if(self._is_one_of(letter, _LETTERS[kind.dtype]))
        array = self._context.make_array(kind)(self._context, build)
        shape = self._numbers(self._field(argument, _ARRAY_SHAPE_AT, _POINTER), kind.ndim)
        strides = self._numbers(self._field(argument, _ARRAY_STRIDES_AT, _POINTER), kind.ndim)
        data = self._field(argument, _ARRAY_DATA_AT, _POINTER)
        populate_array(
            array,
            data=build.bitcast(data, array.data.type),
            shape=shape,
            strides=strides,
            itemsize=_INT64(kind.dtype.bitwidth // 8),
            meminfo=None,  # the caller holds the array for as long as the kernel runs
        )
        return array._getvalue()  # noqa: SLF001  # numba's name for it

    def _number_of(self, argument: ir.Value, kind: Any) -> ir.Value:
        """Return a number of 64 bits: a Python int that fits, if it is signed, or NumPy's own."""
        build = self._builder
        place = cgutils.alloca_once(build, _INT64)
        of_numpy = self._is_a(argument, Fact.INT64 if kind.signed else Fact.UINT64)
        with build.if_else(of_numpy) as (then, otherwise):
            with then:
                build.store(self._field(argument, _SCALAR_VALUE_AT, _INT64), place)
            with otherwise:
                self._go_on_if(self._is_a(argument, Fact.INT) if kind.signed else ir.IntType(1)(0))
                number = build.call(self._python("PyLong_AsLongLong", _INT64, _POINTER), [argument])
                build.store(number, place)
                with build.if_then(build.icmp_signed("==", number, _INT64(-1)), likely=False):
                    failed = build.call(self._python("PyErr_Occurred", _POINTER), [])
                    with build.if_then(cgutils.is_not_null(build, failed)):
                        build.call(self._python("PyErr_Clear", ir.VoidType()), [])
                        build.branch(self._mismatch)
        return build.load(place)

    def _result_of(self, returned: ir.Value, results: list[Any]) -> ir.Value:
        build = self._builder
        if not results:
            return self._kept(Fact.NONE)
        if not isinstance(self._kernel.restype, types.BaseTuple):
            return self._boxed(returned, results[0])
        box = build.call(self._python("PyTuple_New", _POINTER, _INT64), [_INT64(len(results))])
        put = self._python("PyTuple_SetItem", _INT32, _POINTER, _INT64, _POINTER)
        # Without memory for a number its place stays empty, and so does the tuple's own.
        with build.if_then(cgutils.is_not_null(build, box)):
            for index, kind in enumerate(results):
                number = self._boxed(build.extract_value(returned, index), kind)
                build.call(put, [box, _INT64(index), number])
        return box

    def _boxed(self, number: ir.Value, kind: Any) -> ir.Value:
        extend = self._builder.sext if kind.signed else self._builder.zext
        name = _SIGNED_RESULT if kind.signed else _UNSIGNED_RESULT
        return self._builder.call(self._python(name, _POINTER, _INT64), [extend(number, _INT64)])

    def _go_on_if(self, condition: ir.Value) -> None:
        """Leave for the block of a mismatch unless a condition holds."""
        following = self._function.append_basic_block()
        self._builder.cbranch(condition, following, self._mismatch)
        self._builder.position_at_end(following)

    def _is_a(self, thing: ir.Value, fact: Fact) -> ir.Value:
        kind = self._field(thing, _TYPE_AT, _POINTER)
        return self._builder.icmp_unsigned("==", kind, self._fact(fact))

    def _is_one_of(self, byte: ir.Value, letters: str) -> ir.Value:
        found: ir.Value = ir.IntType(1)(0)
        for letter in letters:
            same = self._builder.icmp_unsigned("==", byte, _BYTE(ord(letter)))
            found = self._builder.or_(found, same)
        return found

    def _fact(self, fact: Fact) -> ir.Value:
        return self._field(self._facts, _TUPLE_ITEMS_AT + 8 * fact, _POINTER)

    def _kept(self, fact: Fact) -> ir.Value:
        thing = self._fact(fact)
        self._builder.call(self._python("Py_IncRef", ir.VoidType(), _POINTER), [thing])
        return thing

    def _field(self, thing: ir.Value, at: int, kind: ir.Type) -> ir.Value:
        place = self._builder.gep(thing, [_INT64(at)])
        return self._builder.load(self._builder.bitcast(place, kind.as_pointer()))

    def _numbers(self, place: ir.Value, count: int) -> ir.Value:
        loaded = [self._field(place, 8 * index, _INT64) for index in range(count)]
        return cgutils.pack_array(self._builder, loaded, _INT64)

    def _python(self, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Value:
        kind = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self._module, kind, name)
