; What differs between processors: the futex system call's number and the spin-wait hint.
@futex_number = internal constant i64 98

declare void @llvm.aarch64.hint(i32 immarg)

define internal void @pause() alwaysinline {
  call void @llvm.aarch64.hint(i32 1) ; yield
  ret void
}
