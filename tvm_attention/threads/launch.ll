; The launch function kernels call for a parallel loop:
;   int launch(int (*lambda)(int task, TVMParallelGroupEnv* env, void* closure), void* closure, int asked)
; It runs tasks 0 .. n-1 on OpenMP's pool (here), on our own (pool.ll) or one after the other, and returns
; 0 or the code of a task that failed, whose TVM error it raises again in the calling thread. Loops ask for 0
; tasks, as many as there are threads. @launch_counted makes that no more than the loop has iterations, so that
; no thread is woken for nothing, of loops whose number of iterations is a variable: TVM packs what a loop refers
; to into its closure in the order in which it is met, that number first.

; lambda, closure, TVMParallelGroupEnv (unused synchronisation handle, number of tasks), tasks not handed
; out yet (may fall below 0), first failure's code, first failure's TVM error or null
%job = type { ptr, ptr, { ptr, i32 }, i32, i32, ptr }

declare void @TVMFFIErrorMoveFromRaised(ptr)
declare void @TVMFFIErrorSetRaised(ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare i32 @TVMFFIObjectDecRef(ptr)

; Where loops run. Python sets these through @select.
@openmp_parallel = internal global ptr null    ; GOMP_parallel of one OpenMP library, null: our own pool
@openmp_max_threads = internal global ptr null ; omp_get_max_threads of that library, or null
@thread_limit = internal global i32 1          ; threads at most; 0: as many as OpenMP says

define internal void @select(ptr %parallel, ptr %max_threads, i32 %limit) {
  store atomic ptr %max_threads, ptr @openmp_max_threads monotonic, align 8
  store atomic i32 %limit, ptr @thread_limit monotonic, align 4
  store atomic ptr %parallel, ptr @openmp_parallel release, align 8
  ret void
}

define internal i32 @max_threads() {
entry:
  %limit = load atomic i32, ptr @thread_limit monotonic, align 4
  %ask = load atomic ptr, ptr @openmp_max_threads monotonic, align 8
  %silent = icmp eq ptr %ask, null
  br i1 %silent, label %ours, label %openmp
ours:
  ret i32 %limit
openmp:
  %threads = call i32 %ask()
  %limited = icmp sgt i32 %limit, 0
  %fewer = call i32 @llvm.smin.i32(i32 %limit, i32 %threads)
  %result = select i1 %limited, i32 %fewer, i32 %threads
  ret i32 %result
}

define internal i32 @launch(ptr %lambda, ptr %closure, i32 %asked) {
entry:
  %job = alloca %job
  %max = call i32 @max_threads()
  %any = icmp sgt i32 %asked, 0
  %tasks = select i1 %any, i32 %asked, i32 %max
  %threads = call i32 @llvm.smin.i32(i32 %tasks, i32 %max)
  %parallel = load atomic ptr, ptr @openmp_parallel acquire, align 8
  %alone = icmp sle i32 %threads, 1
  br i1 %alone, label %serial, label %many
serial:
  %serial_code = call i32 @serial_launch(ptr %lambda, ptr %closure, i32 %tasks)
  ret i32 %serial_code
many:
  %none = icmp eq ptr %parallel, null
  br i1 %none, label %own, label %openmp
own:
  %own_code = call i32 @pool_launch(ptr %lambda, ptr %closure, i32 %tasks, i32 %threads)
  ret i32 %own_code
openmp:
  call void @describe(ptr %job, ptr %lambda, ptr %closure, i32 %tasks)
  %remaining = getelementptr %job, ptr %job, i32 0, i32 3
  store i32 %tasks, ptr %remaining
  ; GOMP_parallel returns when every thread of the team has left @work. Inside another parallel
  ; region the team is one thread, which then takes all tasks.
  call void %parallel(ptr @work, ptr %job, i32 %threads, i32 0)
  %openmp_code = call i32 @outcome(ptr %job)
  ret i32 %openmp_code
}

define internal i32 @launch_counted(ptr %lambda, ptr %closure, i32 %asked) {
  %iterations = load i32, ptr %closure
  %max = call i32 @max_threads()
  %least = call i32 @llvm.smax.i32(i32 %iterations, i32 1)
  %tasks = call i32 @llvm.smin.i32(i32 %least, i32 %max)
  %code = call i32 @launch(ptr %lambda, ptr %closure, i32 %tasks)
  ret i32 %code
}

; Fills all of a job but the tasks to hand out, whose store comes after and starts it.
define internal void @describe(ptr %job, ptr %lambda, ptr %closure, i32 %tasks) {
  store ptr %lambda, ptr %job
  %closure_field = getelementptr %job, ptr %job, i32 0, i32 1
  store ptr %closure, ptr %closure_field
  %env = getelementptr %job, ptr %job, i32 0, i32 2
  store ptr null, ptr %env
  %tasks_field = getelementptr %job, ptr %job, i32 0, i32 2, i32 1
  store i32 %tasks, ptr %tasks_field
  %code_field = getelementptr %job, ptr %job, i32 0, i32 4
  store i32 0, ptr %code_field
  %error_field = getelementptr %job, ptr %job, i32 0, i32 5
  store ptr null, ptr %error_field
  ret void
}

; Runs tasks until none is left.
define internal void @work(ptr %job) {
entry:
  br label %take
take:
  %more = call i1 @run_next_task(ptr %job)
  br i1 %more, label %take, label %done
done:
  ret void
}

; Takes one task and runs it; false when none is left. The subtraction is the claim: its acquire makes the
; job's fields visible, and they stay as they are until the claimed task has been counted as finished.
define internal i1 @run_next_task(ptr %job) {
entry:
  %remaining_field = getelementptr %job, ptr %job, i32 0, i32 3
  %remaining = atomicrmw sub ptr %remaining_field, i32 1 acquire
  %any = icmp sgt i32 %remaining, 0
  br i1 %any, label %run, label %none
none:
  ret i1 false
run:
  %lambda = load ptr, ptr %job
  %closure_field = getelementptr %job, ptr %job, i32 0, i32 1
  %closure = load ptr, ptr %closure_field
  %env = getelementptr %job, ptr %job, i32 0, i32 2
  %tasks_field = getelementptr %job, ptr %job, i32 0, i32 2, i32 1
  %tasks = load i32, ptr %tasks_field
  %task = sub i32 %tasks, %remaining
  %code = call i32 %lambda(i32 %task, ptr %env, ptr %closure)
  %ok = icmp eq i32 %code, 0
  br i1 %ok, label %end, label %failed
failed:
  call void @note_failure(ptr %job, i32 %code)
  br label %end
end:
  ret i1 true
}

; TVM keeps an error with the thread that raised it: the first one moves into the job, others are dropped.
define internal void @note_failure(ptr %job, i32 %code) {
entry:
  %error_place = alloca ptr
  store ptr null, ptr %error_place
  call void @TVMFFIErrorMoveFromRaised(ptr %error_place)
  %error = load ptr, ptr %error_place
  %code_field = getelementptr %job, ptr %job, i32 0, i32 4
  %exchange = cmpxchg ptr %code_field, i32 0, i32 %code monotonic monotonic
  %first = extractvalue { i32, i1 } %exchange, 1
  br i1 %first, label %keep, label %late
keep:
  %error_field = getelementptr %job, ptr %job, i32 0, i32 5
  store ptr %error, ptr %error_field
  ret void
late:
  %nothing = icmp eq ptr %error, null
  br i1 %nothing, label %end, label %drop
drop:
  %ignored = call i32 @TVMFFIObjectDecRef(ptr %error)
  br label %end
end:
  ret void
}

@error_kind = internal constant [13 x i8] c"RuntimeError\00"
@error_text = internal constant [55 x i8] c"a task of a parallel loop returned a code other than 0\00"

; The launch's return value once all tasks have ended.
define internal i32 @outcome(ptr %job) {
entry:
  %code_field = getelementptr %job, ptr %job, i32 0, i32 4
  %code = load i32, ptr %code_field
  %ok = icmp eq i32 %code, 0
  br i1 %ok, label %end, label %failed
failed:
  %error_field = getelementptr %job, ptr %job, i32 0, i32 5
  %error = load ptr, ptr %error_field
  %silent = icmp eq ptr %error, null
  br i1 %silent, label %describe_it, label %raise
describe_it:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @error_kind, ptr @error_text)
  br label %end
raise:
  call void @TVMFFIErrorSetRaised(ptr %error)
  %ignored = call i32 @TVMFFIObjectDecRef(ptr %error)
  br label %end
end:
  ret i32 %code
}

; Runs all tasks in the calling thread.
define internal i32 @serial_launch(ptr %lambda, ptr %closure, i32 %tasks) {
entry:
  %job = alloca %job
  call void @describe(ptr %job, ptr %lambda, ptr %closure, i32 %tasks)
  %remaining = getelementptr %job, ptr %job, i32 0, i32 3
  store i32 %tasks, ptr %remaining
  call void @work(ptr %job)
  %code = call i32 @outcome(ptr %job)
  ret i32 %code
}

; What Python uses, by position (see native.py).
@interface = internal constant [4 x ptr] [
  ptr @launch, ptr @select, ptr @forget_workers, ptr @launch_counted
]

; TVM's calling convention: gives the address of @interface as an int (TVMFFIAny: i32 type 1, i64 value).
define i32 @__tvm_ffi_interface(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  store i32 1, ptr %result
  %value_place = getelementptr i8, ptr %result, i64 8
  %value = ptrtoint ptr @interface to i64
  store i64 %value, ptr %value_place
  ret i32 0
}
