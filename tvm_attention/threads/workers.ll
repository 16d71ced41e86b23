; The workers of our own pool. They live as long as the process, sleep when idle and may use the processors
; the thread that started them might.

; What the launching thread and one worker know of each other, in cache lines of its own: the worker's
; state (a futex), its thread, and the processors it may use while it is being moved.
%worker = type { i32, [4 x i8], i64, [48 x i8], [128 x i8] }
; States. The worker sets 0 and 1, the launching thread the others, each from the one before.
;   0 up   1 asleep   2 woken or new, has not run since   3 being moved to another processor   4 moved

@pool_workers = internal global [256 x %worker] zeroinitializer, align 64
@pool_size = internal global i32 0, align 4 ; workers started, written under the lock of a launch
@pool_wary = internal global i1 false       ; whether the last launch had to move workers
@worker_name = internal constant [14 x i8] c"tvm_attention\00"

; Brings the pool to the wanted size if it is smaller; gives how many workers to use. Where threads
; cannot be had the loop runs on those there are.
define internal i32 @start_workers(i32 %wanted) {
entry:
  %capped = call i32 @llvm.smin.i32(i32 %wanted, i32 256)
  br label %next
next:
  %size = load i32, ptr @pool_size
  %enough = icmp sge i32 %size, %capped
  br i1 %enough, label %end, label %start
start:
  %worker = getelementptr [256 x %worker], ptr @pool_workers, i32 0, i32 %size
  store i32 2, ptr %worker
  %thread = getelementptr %worker, ptr %worker, i32 0, i32 2
  %code = call i32 @pthread_create(ptr %thread, ptr null, ptr @work_for_ever, ptr %worker)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %end, label %started
started:
  %id = load i64, ptr %thread
  %named = call i32 @pthread_setname_np(i64 %id, ptr @worker_name)
  %detached = call i32 @pthread_detach(i64 %id)
  %larger = add i32 %size, 1
  store i32 %larger, ptr @pool_size
  br label %next
end:
  %result = call i32 @llvm.smin.i32(i32 %size, i32 %capped)
  ret i32 %result
}

; Wakes those of the first workers that sleep; says whether there is any that does not run yet.
define internal i1 @wake_workers(i32 %helpers) {
entry:
  br label %next
next:
  %i = phi i32 [ 0, %entry ], [ %up, %look ], [ %up, %claim ], [ %up, %wake ]
  %any = phi i1 [ false, %entry ], [ %any_now, %look ], [ %any_now, %claim ], [ %any_now, %wake ]
  %more = icmp slt i32 %i, %helpers
  br i1 %more, label %look, label %end
look:
  %up = add i32 %i, 1
  %worker = getelementptr [256 x %worker], ptr @pool_workers, i32 0, i32 %i
  %state = load atomic i32, ptr %worker seq_cst, align 64
  %down = icmp ne i32 %state, 0
  %any_now = or i1 %any, %down
  %asleep = icmp eq i32 %state, 1
  br i1 %asleep, label %claim, label %next
claim:
  %exchange = cmpxchg ptr %worker, i32 1, i32 2 seq_cst monotonic
  %ours = extractvalue { i32, i1 } %exchange, 1
  br i1 %ours, label %wake, label %next
wake:
  call void @futex_wake(ptr %worker)
  br label %next
end:
  ret i1 %any
}

; Linux may queue a woken worker behind the launching thread on the same processor, when every other one
; is busy (with the spinning threads of a BLAS, say), and do so launch after launch. Workers that have not
; run after a while are therefore moved: barred from this processor until they run. After a launch where
; that was necessary the next one gives its workers the time to turn up before it starts itself, because
; a task may take long and nobody can look after them meanwhile. Both functions say whether any was moved.
define internal i1 @await_workers(i32 %helpers) {
entry:
  %wary = load i1, ptr @pool_wary
  br i1 %wary, label %next, label %all_up
next:
  %i = phi i32 [ 0, %entry ], [ %up, %wait ]
  %more = icmp slt i32 %i, %helpers
  br i1 %more, label %wait, label %all_up
wait:
  %up = add i32 %i, 1
  %worker = getelementptr [256 x %worker], ptr @pool_workers, i32 0, i32 %i
  %turned_up = call i1 @spin(ptr %worker, i32 2)
  br i1 %turned_up, label %next, label %missing
missing:
  %moved = call i1 @move_workers(i32 %helpers)
  ret i1 %moved
all_up:
  ret i1 false
}

define internal i1 @move_workers(i32 %helpers) {
entry:
  %allowed = alloca [128 x i8], align 8
  %processor = call i32 @sched_getcpu()
  %valid = icmp ult i32 %processor, 1024
  br i1 %valid, label %next, label %give_up
give_up:
  ret i1 false
next:
  %i = phi i32 [ 0, %entry ], [ %up, %look ], [ %up, %skip ], [ %up, %change ]
  %any = phi i1 [ false, %entry ], [ %any, %look ], [ %any, %skip ], [ true, %change ]
  %more = icmp slt i32 %i, %helpers
  br i1 %more, label %look, label %end
look:
  %up = add i32 %i, 1
  %worker = getelementptr [256 x %worker], ptr @pool_workers, i32 0, i32 %i
  %exchange = cmpxchg ptr %worker, i32 2, i32 3 acquire monotonic
  %late = extractvalue { i32, i1 } %exchange, 1
  br i1 %late, label %bar, label %next
bar:
  %thread_field = getelementptr %worker, ptr %worker, i32 0, i32 2
  %thread = load i64, ptr %thread_field
  %own = getelementptr %worker, ptr %worker, i32 0, i32 4
  %code = call i32 @pthread_getaffinity_np(i64 %thread, i64 128, ptr %own)
  %known = icmp eq i32 %code, 0
  br i1 %known, label %change, label %skip
skip:
  store atomic i32 2, ptr %worker release, align 64
  br label %next
change:
  call void @llvm.memcpy.p0.p0.i64(ptr %allowed, ptr %own, i64 128, i1 false)
  %byte = lshr i32 %processor, 3
  %place = getelementptr [128 x i8], ptr %allowed, i32 0, i32 %byte
  %shift = and i32 %processor, 7
  %bit = shl i32 1, %shift
  %old = load i8, ptr %place
  %narrow = trunc i32 %bit to i8
  %others = xor i8 %narrow, -1
  %new = and i8 %old, %others
  store i8 %new, ptr %place
  ; Fails, changing nothing, if this is the only processor the worker may use.
  %barred = call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %allowed)
  store atomic i32 4, ptr %worker release, align 64
  br label %next
end:
  ret i1 %any
}

define internal ptr @work_for_ever(ptr %worker) {
entry:
  br label %get_up
loop:
  %seen = load atomic i32, ptr @pool_generation acquire, align 4
  call void @pool_work()
  %changed = call i1 @spin(ptr @pool_generation, i32 %seen)
  br i1 %changed, label %loop, label %lie_down
lie_down:
  ; Either a launch sees that this worker sleeps or the worker sees that there was a launch.
  store atomic i32 1, ptr %worker seq_cst, align 64
  %now = load atomic i32, ptr @pool_generation seq_cst, align 4
  %idle = icmp eq i32 %now, %seen
  br i1 %idle, label %sleep, label %get_up
sleep:
  call void @futex_wait(ptr %worker, i32 1)
  %state = load atomic i32, ptr %worker acquire, align 64
  %asleep = icmp eq i32 %state, 1
  br i1 %asleep, label %sleep, label %get_up
get_up:
  %last = load atomic i32, ptr %worker acquire, align 64
  %moving = icmp eq i32 %last, 3
  br i1 %moving, label %moment, label %attempt
moment:
  %yielded = call i32 @sched_yield()
  br label %get_up
attempt:
  %exchange = cmpxchg ptr %worker, i32 %last, i32 0 acq_rel monotonic
  %up = extractvalue { i32, i1 } %exchange, 1
  br i1 %up, label %check, label %get_up
check:
  %was_moved = icmp eq i32 %last, 4
  br i1 %was_moved, label %unbar, label %loop
unbar:
  %thread_field = getelementptr %worker, ptr %worker, i32 0, i32 2
  %thread = load i64, ptr %thread_field
  %own = getelementptr %worker, ptr %worker, i32 0, i32 4
  %code = call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %own)
  br label %loop
}
