; Linked into every kernel. TVM's loader fills this slot of the kernel with a launch on TVM's own pool;
; set_parallel_launch puts another launch function (its address) there afterwards.
@__TVMBackendParallelLaunch = external global ptr

define i32 @set_parallel_launch(i64 %address) {
  %launch = inttoptr i64 %address to ptr
  store ptr %launch, ptr @__TVMBackendParallelLaunch
  ret i32 0
}
