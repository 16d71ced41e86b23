; What differs between processors: the futex system call's number and the spin-wait hint.
@futex_number = internal constant i64 202

declare void @llvm.x86.sse2.pause()

define internal void @pause() alwaysinline {
  call void @llvm.x86.sse2.pause()
  ret void
}
