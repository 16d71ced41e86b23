; A call seen before, as a method that Python calls: it compares the caller's arrays with what is remembered of calls
; and, where they agree, makes the result, unless the caller gives its memory, and runs the kernel.
;
;   run(table, threads, workspace, its bytes, query, key, value, ..., out) -> the result, or None where no plan agrees
;
; Of the arrays, those that are None are not there; for out this makes the result. Whoever calls has looked at what a
; description does not tell: the arrays' type, pending negations, gradients.
;
; table: i64 words (table.py writes them and keeps alive what they point to), of calls that all give out or all do not
;   0   describe(array, view): fills in a %view; takes no reference; not 0, with Python's error set, if it cannot
;   1   empty_like, a Python callable
;   2   None
;   3.. addresses of plans, newest first; 0
; plan: i64 words
;   0   handle of the kernel's main function
;   1   number of main's arguments
;   2   threads it is for, 0: any
;   3   bytes of workspace it needs
;   4   array that results look like, 0: the query
;   5.. of each array, then of the result: which of main's arguments its address is, and its layout (compare.ll)
;   ..  main's arguments as TVMFFIAny; the addresses are filled in here
;   ..  of each array, then of the result: where its first byte is and where its last one ends, from its address

; DLTensor (dlpack.h): data, device, axes and dtype, shape, strides, byte offset
%view = type { i64, i64, i64, ptr, ptr, i64 }
; TVMFFIAny: type index and padding, value
%any = type { i64, i64 }

declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyObject_VectorcallDict(ptr, ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i32 @TVMFFIFunctionCall(ptr, ptr, i32, ptr)
declare void @TVMFFIErrorMoveFromRaised(ptr)
declare i32 @TVMFFIObjectDecRef(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal ptr @run(ptr %self, ptr %given, i64 %count) {
entry:
  %table = call ptr @word(ptr %given, i64 0)
  %most = sub i64 %count, 4
  %views = alloca %view, i64 %most
  %objects = getelementptr ptr, ptr %given, i64 4
  %describe = load ptr, ptr %table
  %none_place = getelementptr ptr, ptr %table, i64 2
  %none_object = load ptr, ptr %none_place
  br label %next_object
next_object:
  %i = phi i64 [ 0, %entry ], [ %i_next, %looked_at ]
  %arrays = phi i64 [ 0, %entry ], [ %arrays_next, %looked_at ]
  %i_end = icmp eq i64 %i, %most
  br i1 %i_end, label %search, label %look_at
look_at:
  %object_place = getelementptr ptr, ptr %objects, i64 %i
  %object = load ptr, ptr %object_place
  %absent = icmp eq ptr %object, %none_object
  br i1 %absent, label %looked_at, label %view
view:
  %view_place = getelementptr %view, ptr %views, i64 %arrays
  %code = call i32 %describe(ptr %object, ptr %view_place)
  %one_more = add i64 %arrays, 1
  %ok = icmp eq i32 %code, 0
  br i1 %ok, label %looked_at, label %indescribable
looked_at:
  %arrays_next = phi i64 [ %arrays, %look_at ], [ %one_more, %view ]
  %i_next = add i64 %i, 1
  br label %next_object
indescribable: ; not strided, on a device without memory, ...
  call void @PyErr_Clear()
  br label %none

search:
  %threads = call ptr @word(ptr %given, i64 1)
  %bytes = call ptr @word(ptr %given, i64 3)
  br label %next_plan
next_plan:
  %p = phi i64 [ 3, %search ], [ %p_next, %look ]
  %plan_place = getelementptr ptr, ptr %table, i64 %p
  %plan = load ptr, ptr %plan_place
  %p_next = add i64 %p, 1
  %p_end = icmp eq ptr %plan, null
  br i1 %p_end, label %none, label %look
look:
  %after = call ptr @agreed(ptr %plan, ptr %threads, ptr %bytes, ptr %views, i64 %arrays)
  %disagrees = icmp eq ptr %after, null
  br i1 %disagrees, label %next_plan, label %found

found:
  %last = sub i64 %most, 1
  %out_place = getelementptr ptr, ptr %objects, i64 %last
  %out_object = load ptr, ptr %out_place
  %is_made = icmp eq ptr %out_object, %none_object
  br i1 %is_made, label %make, label %take
take:
  call void @Py_IncRef(ptr %out_object)
  br label %place
make:
  %made = call ptr @result(ptr %table, ptr %plan, ptr %objects)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %error, label %describe_made
error:
  ret ptr null
describe_made:
  %made_view = getelementptr %view, ptr %views, i64 %arrays
  %made_code = call i32 %describe(ptr %made, ptr %made_view)
  %made_ok = icmp eq i32 %made_code, 0
  br i1 %made_ok, label %look_at_made, label %foreign
look_at_made:
  %after_made = call ptr @same_layout(ptr %after, ptr %made_view)
  %made_differs = icmp eq ptr %after_made, null
  %with_made = add i64 %arrays, 1
  br i1 %made_differs, label %foreign, label %place
foreign: ; a mode of torch made something else of it, such as a fake tensor
  call void @PyErr_Clear()
  br label %let_go

place:
  %out = phi ptr [ %out_object, %take ], [ %made, %look_at_made ]
  %planned_arguments = phi ptr [ %after, %take ], [ %after_made, %look_at_made ]
  %with_out = phi i64 [ %arrays, %take ], [ %with_made, %look_at_made ]
  %main_count_place = getelementptr i64, ptr %plan, i64 1
  %main_count = load i64, ptr %main_count_place
  %extents = getelementptr %any, ptr %planned_arguments, i64 %main_count
  %is_apart = call i1 @apart(ptr %extents, ptr %views, i64 %with_out)
  br i1 %is_apart, label %fill, label %let_go ; the checked call, which comes next, says of which array it has memory
fill:
  %arguments = alloca %any, i64 %main_count
  %size = shl i64 %main_count, 4
  call void @llvm.memcpy.p0.p0.i64(ptr %arguments, ptr %planned_arguments, i64 %size, i1 false)
  call void @write_addresses(ptr %arguments, ptr %plan, ptr %views, i64 %with_out)
  %workspace = call ptr @word(ptr %given, i64 2)
  %workspace_place = getelementptr %any, ptr %arguments, i64 4, i32 1
  store ptr %workspace, ptr %workspace_place
  %nothing = alloca %any
  store %any zeroinitializer, ptr %nothing
  %main = load ptr, ptr %plan
  %main_count_32 = trunc i64 %main_count to i32
  %thread = call ptr @PyEval_SaveThread()
  %main_code = call i32 @TVMFFIFunctionCall(ptr %main, ptr %arguments, i32 %main_count_32, ptr %nothing)
  call void @PyEval_RestoreThread(ptr %thread)
  %ran = icmp eq i32 %main_code, 0
  br i1 %ran, label %done, label %raised
done:
  ret ptr %out
raised: ; the checked call, which comes next, raises it as a Python error
  call void @TVMFFIErrorMoveFromRaised(ptr %nothing)
  %raised_error = load ptr, ptr %nothing
  %ignored = call i32 @TVMFFIObjectDecRef(ptr %raised_error)
  br label %let_go
let_go:
  %unused = phi ptr [ %made, %foreign ], [ %out, %place ], [ %out, %raised ]
  call void @Py_DecRef(ptr %unused)
  br label %none
none:
  call void @Py_IncRef(ptr %none_object)
  ret ptr %none_object
}

; A Python int among the arguments, as a word.
define internal ptr @word(ptr %given, i64 %index) {
  %place = getelementptr ptr, ptr %given, i64 %index
  %object = load ptr, ptr %place
  %number = call i64 @PyLong_AsLongLong(ptr %object)
  %word = inttoptr i64 %number to ptr
  ret ptr %word
}

; A new array for the result, or null with Python's error set.
define internal ptr @result(ptr %table, ptr %plan, ptr %objects) {
  %own_place = getelementptr ptr, ptr %plan, i64 4
  %own = load ptr, ptr %own_place
  %none = icmp eq ptr %own, null
  %like_place = select i1 %none, ptr %objects, ptr %own_place
  %empty_like_place = getelementptr ptr, ptr %table, i64 1
  %empty_like = load ptr, ptr %empty_like_place
  %made = call ptr @PyObject_VectorcallDict(ptr %empty_like, ptr %like_place, i64 1, ptr null)
  ret ptr %made
}

@name = internal constant [15 x i8] c"run_remembered\00"
; PyMethodDef: name, function, METH_FASTCALL, no documentation
@method = internal global { ptr, ptr, i32, ptr } { ptr @name, ptr @run, i32 128, ptr null }

@interface = internal constant { ptr, ptr } { ptr @method, ptr @describe_ndarray }

; TVM's calling convention: gives the address of @interface as an int (TVMFFIAny: i32 type 1, i64 value).
define i32 @__tvm_ffi_interface(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  store i32 1, ptr %result
  %value_place = getelementptr i8, ptr %result, i64 8
  %value = ptrtoint ptr @interface to i64
  store i64 %value, ptr %value_place
  ret i32 0
}
