; Our own pool, for processes without an OpenMP library: a launch, as its thread sees it (workers.ll has the
; other threads). One launch runs at a time; a launch that finds the pool busy (another thread's loop, or a loop
; inside a task) runs serially in its own thread.

; Each variable that threads fight for has a cache line of its own.
@pool_job = internal global %job zeroinitializer, align 64 ; the loop being run
@pool_unfinished = internal global i32 0, align 64         ; futex: its tasks not finished yet
@pool_caller_sleeps = internal global i32 0, align 4       ; 1 while the caller sleeps on @pool_unfinished
@pool_generation = internal global i32 0, align 64         ; counts launches
@pool_busy = internal global i32 0, align 64               ; try-lock of a launch
; How long a waiting thread spins before it sleeps, and how long a woken worker may take to run.
@patience_nanoseconds = internal constant i64 50000

define internal i32 @pool_launch(ptr %lambda, ptr %closure, i32 %tasks, i32 %threads) {
entry:
  %exchange = cmpxchg ptr @pool_busy, i32 0, i32 1 acquire monotonic
  %free = extractvalue { i32, i1 } %exchange, 1
  br i1 %free, label %start, label %serial
serial:
  %serial_code = call i32 @serial_launch(ptr %lambda, ptr %closure, i32 %tasks)
  ret i32 %serial_code
start:
  %wanted = sub i32 %threads, 1
  %helpers = call i32 @start_workers(i32 %wanted)
  ; A worker that comes late touches nothing but the count of remaining tasks, which is 0 or less here.
  call void @describe(ptr @pool_job, ptr %lambda, ptr %closure, i32 %tasks)
  store atomic i32 %tasks, ptr @pool_unfinished monotonic, align 4
  store atomic i32 %tasks, ptr getelementptr (%job, ptr @pool_job, i32 0, i32 3) release, align 4
  %generation = atomicrmw add ptr @pool_generation, i32 1 seq_cst
  %woken = call i1 @wake_workers(i32 %helpers)
  br i1 %woken, label %with_sleepers, label %take_part
with_sleepers:
  %moved = call i1 @await_workers(i32 %helpers)
  %begin = call i64 @nanoseconds()
  %first = call i1 @run_and_count()
  %end = call i64 @nanoseconds()
  %spent = sub i64 %end, %begin
  %patience = load i64, ptr @patience_nanoseconds
  %long = icmp sgt i64 %spent, %patience
  br i1 %long, label %look, label %note
look:
  %moved_now = call i1 @move_workers(i32 %helpers)
  br label %note
note:
  %moved_late = phi i1 [ false, %with_sleepers ], [ %moved_now, %look ]
  %moved_any = or i1 %moved, %moved_late
  store i1 %moved_any, ptr @pool_wary
  br label %take_part
take_part:
  call void @pool_work()
  call void @await_tasks()
  %code = call i32 @outcome(ptr @pool_job)
  store atomic i32 0, ptr @pool_busy release, align 4
  ret i32 %code
}

define internal void @pool_work() {
entry:
  br label %take
take:
  %more = call i1 @run_and_count()
  br i1 %more, label %take, label %done
done:
  ret void
}

; Takes one task, runs it and counts it as finished; false when none is left.
define internal i1 @run_and_count() {
entry:
  %ran = call i1 @run_next_task(ptr @pool_job)
  br i1 %ran, label %finished, label %end
finished:
  %unfinished = atomicrmw sub ptr @pool_unfinished, i32 1 seq_cst
  %last = icmp eq i32 %unfinished, 1
  br i1 %last, label %report, label %end
report:
  %sleeps = load atomic i32, ptr @pool_caller_sleeps seq_cst, align 4
  %awake = icmp eq i32 %sleeps, 0
  br i1 %awake, label %end, label %wake
wake:
  call void @futex_wake(ptr @pool_unfinished)
  br label %end
end:
  ret i1 %ran
}

define internal void @await_tasks() {
entry:
  br label %check
check:
  %unfinished = load atomic i32, ptr @pool_unfinished acquire, align 4
  %done = icmp eq i32 %unfinished, 0
  br i1 %done, label %end, label %wait
wait:
  %changed = call i1 @spin(ptr @pool_unfinished, i32 %unfinished)
  br i1 %changed, label %check, label %sleep
sleep:
  store atomic i32 1, ptr @pool_caller_sleeps seq_cst, align 4
  %now = load atomic i32, ptr @pool_unfinished seq_cst, align 4
  %over = icmp eq i32 %now, 0
  br i1 %over, label %awake, label %rest
rest:
  call void @futex_wait(ptr @pool_unfinished, i32 %now)
  br label %awake
awake:
  store atomic i32 0, ptr @pool_caller_sleeps monotonic, align 4
  br label %check
end:
  ret void
}

; For a forked child: the workers stayed with the parent, and one of its threads may have been launching.
define internal void @forget_workers() {
  store i32 0, ptr @pool_size
  store i32 0, ptr @pool_caller_sleeps
  store i1 false, ptr @pool_wary
  store i32 0, ptr @pool_unfinished
  store i32 0, ptr getelementptr (%job, ptr @pool_job, i32 0, i32 3)
  store i32 0, ptr @pool_busy
  ret void
}
