; Comparison of arrays with a plan (run.ll). What a plan holds of an array, in i64 words:
;   0   which of main's arguments its address is
;   1   device                  words of its %view, compared as they are
;   2   axes and dtype
;   3.. shape, strides

declare i32 @memcmp(ptr, ptr, i64)

; What a plan holds behind the arrays' words, if it is for such arrays, threads and bytes of workspace; else null.
define internal ptr @agreed(ptr %plan, ptr %threads, ptr %bytes, ptr %views, i64 %arrays) {
entry:
  %planned_place = getelementptr i64, ptr %plan, i64 2
  %planned = load ptr, ptr %planned_place
  %any_number = icmp eq ptr %planned, null
  %same_number = icmp eq ptr %planned, %threads
  %threads_fit = or i1 %any_number, %same_number
  %needed_place = getelementptr i64, ptr %plan, i64 3
  %needed = load ptr, ptr %needed_place
  %enough = icmp ule ptr %needed, %bytes
  %fit = and i1 %threads_fit, %enough
  %first = getelementptr i64, ptr %plan, i64 5
  br i1 %fit, label %next, label %differ
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %same ]
  %expected = phi ptr [ %first, %entry ], [ %after, %same ]
  %end = icmp eq i64 %i, %arrays
  br i1 %end, label %agree, label %compare
agree:
  ret ptr %expected
compare:
  %view = getelementptr %view, ptr %views, i64 %i
  %after = call ptr @same_layout(ptr %expected, ptr %view)
  %i_next = add i64 %i, 1
  %other = icmp eq ptr %after, null
  br i1 %other, label %differ, label %same
same:
  br label %next
differ:
  ret ptr null
}

; Where the next array's words begin, if the view is of an array with memory and of this layout; else null.
define internal ptr @same_layout(ptr %expected, ptr %view) {
  %data = load i64, ptr %view
  %no_memory = icmp eq i64 %data, 0
  br i1 %no_memory, label %differ, label %kind ; inside torch.func's transforms, say: plans are of calls with memory
kind:
  %kind_place = getelementptr %view, ptr %view, i64 0, i32 1
  %expected_kind = getelementptr i64, ptr %expected, i64 1
  %kind_order = call i32 @memcmp(ptr %kind_place, ptr %expected_kind, i64 16)
  %other_kind = icmp ne i32 %kind_order, 0
  br i1 %other_kind, label %differ, label %extents
extents:
  %axes = call i64 @axes_of(ptr %expected)
  %size = shl i64 %axes, 3
  %expected_shape = getelementptr i64, ptr %expected, i64 3
  %expected_strides = getelementptr i64, ptr %expected_shape, i64 %axes
  %after = getelementptr i64, ptr %expected_strides, i64 %axes
  %shape_place = getelementptr %view, ptr %view, i64 0, i32 3
  %shape = load ptr, ptr %shape_place
  %strides_place = getelementptr %view, ptr %view, i64 0, i32 4
  %strides = load ptr, ptr %strides_place
  %shape_order = call i32 @memcmp(ptr %shape, ptr %expected_shape, i64 %size)
  %strides_order = call i32 @memcmp(ptr %strides, ptr %expected_strides, i64 %size)
  %order = or i32 %shape_order, %strides_order
  %alike = icmp eq i32 %order, 0
  br i1 %alike, label %same, label %differ
same:
  ret ptr %after
differ:
  ret ptr null
}

; Writes the arrays' addresses into main's arguments.
define internal void @write_addresses(ptr %arguments, ptr %plan, ptr %views, i64 %count) {
entry:
  %first = getelementptr i64, ptr %plan, i64 5
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %write ]
  %planned = phi ptr [ %first, %entry ], [ %after, %write ]
  %end = icmp eq i64 %i, %count
  br i1 %end, label %done, label %write
write:
  %address = call i64 @address_of(ptr %views, i64 %i)
  %index = load i64, ptr %planned
  %place = getelementptr %any, ptr %arguments, i64 %index, i32 1
  store i64 %address, ptr %place
  %axes = call i64 @axes_of(ptr %planned)
  %extents = shl i64 %axes, 1
  %words = add i64 %extents, 3
  %after = getelementptr i64, ptr %planned, i64 %words
  %i_next = add i64 %i, 1
  br label %next
done:
  ret void
}

; Whether the last array, the result, shares no memory with the others.
define internal i1 @apart(ptr %extents, ptr %views, i64 %count) {
entry:
  %last = sub i64 %count, 1
  %out_first = call i64 @edge_of(ptr %extents, ptr %views, i64 %last, i64 0)
  %out_end = call i64 @edge_of(ptr %extents, ptr %views, i64 %last, i64 1)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %compare ]
  %all = icmp eq i64 %i, %last
  br i1 %all, label %done, label %compare
compare:
  %first = call i64 @edge_of(ptr %extents, ptr %views, i64 %i, i64 0)
  %end = call i64 @edge_of(ptr %extents, ptr %views, i64 %i, i64 1)
  %begins_before = icmp ult i64 %first, %out_end
  %ends_behind = icmp ult i64 %out_first, %end
  %shared = and i1 %begins_before, %ends_behind
  %i_next = add i64 %i, 1
  br i1 %shared, label %done, label %next
done:
  %is_apart = phi i1 [ true, %next ], [ false, %compare ]
  ret i1 %is_apart
}

; Where an array's memory begins (side 0) and ends (1).
define internal i64 @edge_of(ptr %extents, ptr %views, i64 %index, i64 %side) {
  %address = call i64 @address_of(ptr %views, i64 %index)
  %place = getelementptr [2 x i64], ptr %extents, i64 %index, i64 %side
  %distance = load i64, ptr %place
  %edge = add i64 %address, %distance
  ret i64 %edge
}

define internal i64 @address_of(ptr %views, i64 %index) {
  %view = getelementptr %view, ptr %views, i64 %index
  %data = load i64, ptr %view
  %offset_place = getelementptr %view, ptr %view, i64 0, i32 5
  %offset = load i64, ptr %offset_place
  %address = add i64 %data, %offset
  ret i64 %address
}

; The number of axes in what a plan holds of an array: the lower half of its third word.
define internal i64 @axes_of(ptr %planned) {
  %place = getelementptr i64, ptr %planned, i64 2
  %axes_32 = load i32, ptr %place
  %axes = zext i32 %axes_32 to i64
  ret i64 %axes
}
