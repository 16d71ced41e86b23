; What the pool needs of the C library and of Linux.
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_setname_np(i64, ptr)
declare i32 @pthread_getaffinity_np(i64, i64, ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare i32 @sched_getcpu()
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i64 @syscall(i64, ...)
declare i32 @llvm.smax.i32(i32, i32)
declare i32 @llvm.smin.i32(i32, i32)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; True as soon as the word differs from the value, false when it has not within @patience_nanoseconds.
define internal i1 @spin(ptr %word, i32 %value) {
entry:
  %start = call i64 @nanoseconds()
  %allowed = load i64, ptr @patience_nanoseconds
  br label %batch
batch:
  br label %look
look:
  %i = phi i32 [ 0, %batch ], [ %next, %again ]
  %now = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %now, %value
  br i1 %same, label %again, label %changed
again:
  call void @pause()
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, 16
  br i1 %more, label %look, label %clock
clock:
  %time = call i64 @nanoseconds()
  %spent = sub i64 %time, %start
  %left = icmp slt i64 %spent, %allowed
  br i1 %left, label %batch, label %unchanged
changed:
  ret i1 true
unchanged:
  ret i1 false
}

define internal i64 @nanoseconds() {
  %time = alloca { i64, i64 }
  %ignored = call i32 @clock_gettime(i32 1, ptr %time) ; CLOCK_MONOTONIC
  %seconds = load i64, ptr %time
  %rest_field = getelementptr { i64, i64 }, ptr %time, i32 0, i32 1
  %rest = load i64, ptr %rest_field
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

; Sleeps while the word has the value; may return earlier.
define internal void @futex_wait(ptr %word, i32 %value) {
  %number = load i64, ptr @futex_number
  ; FUTEX_WAIT | FUTEX_PRIVATE_FLAG, no timeout
  %ignored = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i64 128, i32 %value, ptr null)
  ret void
}

; Wakes the thread that sleeps on the word.
define internal void @futex_wake(ptr %word) {
  %number = load i64, ptr @futex_number
  ; FUTEX_WAKE | FUTEX_PRIVATE_FLAG
  %ignored = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i64 129, i32 1)
  ret void
}
