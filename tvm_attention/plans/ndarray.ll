; Describes a NumPy array as DLPack's exchange function does a tensor (run.ll). For the device stands the address of
; its dtype object, for the dtype whether its elements are aligned and may be written; strides are in bytes.

; PyArrayObject_fields (numpy/ndarraytypes.h): Python's header, data, axes, shape, strides, base, dtype, flags
%ndarray = type { { i64, ptr }, ptr, i32, ptr, ptr, ptr, ptr, i32 }

define internal i32 @describe_ndarray(ptr %array, ptr %view) {
  %fields = load %ndarray, ptr %array
  %data = extractvalue %ndarray %fields, 1
  %axes_32 = extractvalue %ndarray %fields, 2
  %axes = zext i32 %axes_32 to i64
  %shape = extractvalue %ndarray %fields, 3
  %strides = extractvalue %ndarray %fields, 4
  %dtype = extractvalue %ndarray %fields, 6
  %flags_32 = extractvalue %ndarray %fields, 7
  %flags = zext i32 %flags_32 to i64
  %looked_at = and i64 %flags, 1280 ; NPY_ARRAY_ALIGNED and NPY_ARRAY_WRITEABLE
  %high = shl i64 %looked_at, 32
  %kind = or i64 %axes, %high
  store ptr %data, ptr %view
  %dtype_place = getelementptr %view, ptr %view, i64 0, i32 1
  store ptr %dtype, ptr %dtype_place
  %kind_place = getelementptr %view, ptr %view, i64 0, i32 2
  store i64 %kind, ptr %kind_place
  %shape_place = getelementptr %view, ptr %view, i64 0, i32 3
  store ptr %shape, ptr %shape_place
  %strides_place = getelementptr %view, ptr %view, i64 0, i32 4
  store ptr %strides, ptr %strides_place
  %offset_place = getelementptr %view, ptr %view, i64 0, i32 5
  store i64 0, ptr %offset_place
  ret i32 0
}
