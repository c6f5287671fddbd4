"""LLVM text of the one function between Python and machine code.

A kernel is a plain C function, ``int64 kernel(const int64 *values, int64 *results)``; it returns 0,
or 1 if it left the range of an array. This function reads the arguments of a call into ``values``,
calls the kernel without the interpreter lock, and makes Python's numbers of ``results``. It asks
CPython for everything by functions of its stable ABI and knows no layout of an object: neither a
version of Python nor one of NumPy can move a field under it.

Source: https://docs.python.org/3/c-api/stable.html, and there "Buffer Protocol" for ``Py_buffer``.
"""

from string import Template
from typing import Final

# Names of the function, and of the kernel by which it is checked.
CALL: Final = "pylog_call"
ECHO: Final = "pylog_echo"

MOST_DIMENSIONS: Final = 3
# What an argument has in ``values``: a number, or an address, all lengths, and all strides.
VALUE_WORDS: Final = 1 + 2 * MOST_DIMENSIONS

# Kinds of arguments, as the first word of their description says them. Five more words describe an
# array: its letter of `struct`, another one for the same type, its dimensions, whether its items
# lie without gaps, whether it may be read-only.
SIGNED: Final = 0
UNSIGNED: Final = 1
TRUTH: Final = 2
ARRAY: Final = 3
KIND_WORDS: Final = 6

_TEXT: Final = Template("""
%View = type { ptr, ptr, i64, i64, i32, i32, ptr, ptr, ptr, ptr, ptr }
%Kind = type { i64, i64, i64, i64, i64, i64 }
; the kernel, its signature, and objects of Python
%Closure = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr }
; how many arguments and results, whether a tuple has these; kinds and signs follow
%Signature = type { i64, i64, i64 }

declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyObject_Type(ptr)
declare i32 @PyObject_GetBuffer(ptr, ptr, i32)
declare i32 @PyBuffer_IsContiguous(ptr, i8)
declare void @PyBuffer_Release(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyLong_FromUnsignedLongLong(i64)
declare ptr @PyNumber_Index(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

@out_of_range = private constant [36 x i8] c"a kernel left the range of an array\\00"

define ptr @$call(ptr %self, ptr %arguments, i64 %count) {
start:
  %closure = call ptr @PyCapsule_GetPointer(ptr %self, ptr null)
  %function = load ptr, ptr %closure
  %signature.at = getelementptr %Closure, ptr %closure, i32 0, i32 1
  %signature = load ptr, ptr %signature.at
  %array.at = getelementptr %Closure, ptr %closure, i32 0, i32 2
  %array.type = load ptr, ptr %array.at
  %int.at = getelementptr %Closure, ptr %closure, i32 0, i32 3
  %int.type = load ptr, ptr %int.at
  %int64.at = getelementptr %Closure, ptr %closure, i32 0, i32 4
  %int64.type = load ptr, ptr %int64.at
  %uint64.at = getelementptr %Closure, ptr %closure, i32 0, i32 5
  %uint64.type = load ptr, ptr %uint64.at
  %true.at = getelementptr %Closure, ptr %closure, i32 0, i32 6
  %true = load ptr, ptr %true.at
  %false.at = getelementptr %Closure, ptr %closure, i32 0, i32 7
  %false = load ptr, ptr %false.at
  %none.at = getelementptr %Closure, ptr %closure, i32 0, i32 8
  %none = load ptr, ptr %none.at
  %mismatch.at = getelementptr %Closure, ptr %closure, i32 0, i32 9
  %mismatch = load ptr, ptr %mismatch.at
  %error.at = getelementptr %Closure, ptr %closure, i32 0, i32 10
  %error = load ptr, ptr %error.at
  %arity = load i64, ptr %signature
  %result.count.at = getelementptr %Signature, ptr %signature, i32 0, i32 1
  %result.count = load i64, ptr %result.count.at
  %is.tuple.at = getelementptr %Signature, ptr %signature, i32 0, i32 2
  %is.tuple = load i64, ptr %is.tuple.at
  %kinds = getelementptr %Signature, ptr %signature, i64 1
  %signs = getelementptr %Kind, ptr %kinds, i64 %arity
  %is.arity = icmp eq i64 %count, %arity
  br i1 %is.arity, label %begin, label %refuse

begin:
  %views = alloca %View, i64 %count
  %words = mul i64 %count, $value_words
  %values = alloca i64, i64 %words
  %results = alloca i64, i64 %result.count
  br label %next

; ---- one argument after the other
next:
  %index = phi i64 [ 0, %begin ], [ %reached, %done ]
  %is.end = icmp eq i64 %index, %count
  br i1 %is.end, label %run, label %read

read:
  %reached = add i64 %index, 1
  %argument.at = getelementptr ptr, ptr %arguments, i64 %index
  %argument = load ptr, ptr %argument.at
  %view = getelementptr %View, ptr %views, i64 %index
  %owner.at = getelementptr %View, ptr %view, i32 0, i32 1
  store ptr null, ptr %owner.at    ; so that releasing it does nothing
  %word = mul i64 %index, $value_words
  %value = getelementptr i64, ptr %values, i64 %word
  %type = call ptr @PyObject_Type(ptr %argument)
  call void @Py_DecRef(ptr %type)    ; the argument keeps it
  %kind = getelementptr %Kind, ptr %kinds, i64 %index
  %code = load i64, ptr %kind
  switch i64 %code, label %array [
    i64 $signed, label %signed
    i64 $unsigned, label %unsigned
    i64 $truth, label %truth
  ]

signed:
  %is.int = icmp eq ptr %type, %int.type
  %is.int64 = icmp eq ptr %type, %int64.type
  %is.signed = or i1 %is.int, %is.int64
  br i1 %is.signed, label %read.signed, label %other

read.signed:
  %signed.number = call i64 @PyLong_AsLongLong(ptr %argument)
  br label %number

unsigned:
  %is.uint64 = icmp eq ptr %type, %uint64.type
  br i1 %is.uint64, label %read.unsigned, label %other

read.unsigned:
  %whole = call ptr @PyNumber_Index(ptr %argument)
  %is.whole = icmp ne ptr %whole, null
  br i1 %is.whole, label %read.whole, label %failed

read.whole:
  %unsigned.number = call i64 @PyLong_AsUnsignedLongLong(ptr %whole)
  call void @Py_DecRef(ptr %whole)
  br label %number

number:
  %number.word = phi i64 [ %signed.number, %read.signed ], [ %unsigned.number, %read.whole ]
  store i64 %number.word, ptr %value
  %may.be.error = icmp eq i64 %number.word, -1
  br i1 %may.be.error, label %ask, label %done

ask:
  %occurred = call ptr @PyErr_Occurred()
  %is.fine = icmp eq ptr %occurred, null
  br i1 %is.fine, label %done, label %failed

truth:
  %is.true = icmp eq ptr %argument, %true
  %is.false = icmp eq ptr %argument, %false
  %is.truth = or i1 %is.true, %is.false
  %truth.word = zext i1 %is.true to i64
  store i64 %truth.word, ptr %value
  br i1 %is.truth, label %done, label %other

array:
  %is.array = icmp eq ptr %type, %array.type
  br i1 %is.array, label %read.array, label %other

read.array:
  %asked = call i32 @PyObject_GetBuffer(ptr %argument, ptr %view, i32 28)    ; strides and format
  %is.there = icmp eq i32 %asked, 0
  br i1 %is.there, label %check.format, label %failed

check.format:
  %format.at = getelementptr %View, ptr %view, i32 0, i32 6
  %format = load ptr, ptr %format.at
  %letter.byte = load i8, ptr %format
  %letter = zext i8 %letter.byte to i64
  %letter.at = getelementptr %Kind, ptr %kind, i32 0, i32 1
  %wanted.letter = load i64, ptr %letter.at
  %other.letter.at = getelementptr %Kind, ptr %kind, i32 0, i32 2
  %other.letter = load i64, ptr %other.letter.at
  %is.letter = icmp eq i64 %letter, %wanted.letter
  %is.other.letter = icmp eq i64 %letter, %other.letter
  %is.type = or i1 %is.letter, %is.other.letter
  br i1 %is.type, label %check.end, label %other

check.end:    ; a letter alone: native order, aligned
  %after.at = getelementptr i8, ptr %format, i64 1
  %after = load i8, ptr %after.at
  %is.alone = icmp eq i8 %after, 0
  br i1 %is.alone, label %check.dimensions, label %other

check.dimensions:
  %rank.at = getelementptr %View, ptr %view, i32 0, i32 5
  %rank.word = load i32, ptr %rank.at
  %rank = zext i32 %rank.word to i64
  %wanted.rank.at = getelementptr %Kind, ptr %kind, i32 0, i32 3
  %wanted.rank = load i64, ptr %wanted.rank.at
  %is.rank = icmp eq i64 %rank, %wanted.rank
  br i1 %is.rank, label %check.gaps, label %other

check.gaps:    ; an array without gaps is for code that knows of none
  %contiguous.word = call i32 @PyBuffer_IsContiguous(ptr %view, i8 67)
  %contiguous = zext i32 %contiguous.word to i64
  %wanted.contiguous.at = getelementptr %Kind, ptr %kind, i32 0, i32 4
  %wanted.contiguous = load i64, ptr %wanted.contiguous.at
  %is.contiguous = icmp eq i64 %contiguous, %wanted.contiguous
  br i1 %is.contiguous, label %check.access, label %other

check.access:
  %readonly.at = getelementptr %View, ptr %view, i32 0, i32 4
  %readonly.word = load i32, ptr %readonly.at
  %readonly = zext i32 %readonly.word to i64
  %may.be.readonly.at = getelementptr %Kind, ptr %kind, i32 0, i32 5
  %may.be.readonly = load i64, ptr %may.be.readonly.at
  %is.access = icmp ule i64 %readonly, %may.be.readonly
  br i1 %is.access, label %take.array, label %other

take.array:
  %data = load ptr, ptr %view
  %address = ptrtoint ptr %data to i64
  store i64 %address, ptr %value
  %bytes = mul i64 %rank, 8
  %lengths = getelementptr i64, ptr %value, i64 1
  %shape.at = getelementptr %View, ptr %view, i32 0, i32 7
  %shape = load ptr, ptr %shape.at
  call void @llvm.memcpy.p0.p0.i64(ptr %lengths, ptr %shape, i64 %bytes, i1 false)
  %steps = getelementptr i64, ptr %lengths, i64 $dimensions
  %strides.at = getelementptr %View, ptr %view, i32 0, i32 8
  %strides = load ptr, ptr %strides.at
  call void @llvm.memcpy.p0.p0.i64(ptr %steps, ptr %strides, i64 %bytes, i1 false)
  br label %done

done:
  br label %next

failed:
  call void @PyErr_Clear()
  br label %other

other:
  br label %give.back

; ---- the kernel
run:
  %thread = call ptr @PyEval_SaveThread()
  %status = call i64 %function(ptr %values, ptr %results)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %give.back

give.back:
  %outcome = phi i64 [ 2, %other ], [ %status, %run ]
  %held = phi i64 [ %reached, %other ], [ %count, %run ]
  br label %release

release:
  %rest = phi i64 [ %held, %give.back ], [ %rest.after, %release.one ]
  %is.released = icmp eq i64 %rest, 0
  br i1 %is.released, label %answer, label %release.one

release.one:
  %rest.after = sub i64 %rest, 1
  %held.view = getelementptr %View, ptr %views, i64 %rest.after
  call void @PyBuffer_Release(ptr %held.view)
  br label %release

; ---- the answer
answer:
  switch i64 %outcome, label %raise [
    i64 0, label %results.or.none
    i64 2, label %refuse
  ]

refuse:
  call void @Py_IncRef(ptr %mismatch)
  ret ptr %mismatch

raise:
  call void @PyErr_SetString(ptr %error, ptr @out_of_range)
  ret ptr null

results.or.none:
  %is.none = icmp eq i64 %result.count, 0
  br i1 %is.none, label %answer.none, label %some

answer.none:
  call void @Py_IncRef(ptr %none)
  ret ptr %none

some:
  %is.one = icmp eq i64 %is.tuple, 0
  br i1 %is.one, label %answer.one, label %answer.tuple

answer.one:
  %one.word = load i64, ptr %results
  %one.sign = load i64, ptr %signs
  %one = call ptr @number_of(i64 %one.word, i64 %one.sign)
  ret ptr %one

answer.tuple:
  %tuple = call ptr @PyTuple_New(i64 %result.count)
  %is.tuple.there = icmp ne ptr %tuple, null
  br i1 %is.tuple.there, label %put.next, label %answer.nothing

put.next:
  %place = phi i64 [ 0, %answer.tuple ], [ %place.after, %put ]
  %is.full = icmp eq i64 %place, %result.count
  br i1 %is.full, label %answer.all, label %make

make:
  %result.at = getelementptr i64, ptr %results, i64 %place
  %result = load i64, ptr %result.at
  %sign.at = getelementptr i64, ptr %signs, i64 %place
  %sign = load i64, ptr %sign.at
  %item = call ptr @number_of(i64 %result, i64 %sign)
  %is.item = icmp ne ptr %item, null
  br i1 %is.item, label %put, label %drop

put:
  %place.after = add i64 %place, 1
  %ignored = call i32 @PyTuple_SetItem(ptr %tuple, i64 %place, ptr %item)
  br label %put.next

answer.all:
  ret ptr %tuple

drop:
  call void @Py_DecRef(ptr %tuple)
  br label %answer.nothing

answer.nothing:
  ret ptr null
}

define private ptr @number_of(i64 %word, i64 %sign) {
start:
  %is.signed = icmp eq i64 %sign, $signed
  br i1 %is.signed, label %signed, label %unsigned
signed:
  %signed.number = call ptr @PyLong_FromLongLong(i64 %word)
  ret ptr %signed.number
unsigned:
  %unsigned.number = call ptr @PyLong_FromUnsignedLongLong(i64 %word)
  ret ptr %unsigned.number
}

; The kernel of the check: its results are its arguments.
define i64 @$echo(ptr %values, ptr %results) {
  call void @llvm.memcpy.p0.p0.i64(ptr %results, ptr %values, i64 $echo_bytes, i1 false)
  ret i64 0
}
""")


def binding_text(echo_arguments: int) -> str:
    """Return the LLVM text of the binding and of its test kernel. The test kernel returns all
    values of ``echo_arguments`` arguments."""
    return _TEXT.substitute(
        call=CALL,
        echo=ECHO,
        echo_bytes=8 * VALUE_WORDS * echo_arguments,
        dimensions=MOST_DIMENSIONS,
        value_words=VALUE_WORDS,
        signed=SIGNED,
        unsigned=UNSIGNED,
        truth=TRUTH,
    )
