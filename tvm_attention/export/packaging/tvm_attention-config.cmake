# find_package(tvm_attention CONFIG) gives the targets tvm_attention::shared and tvm_attention::static of the
# architecture that is compiled for.
set(tvm_attention_VERSION "@VERSION@")
get_filename_component(_tvm_attention_root "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(_tvm_attention_architecture x86_64)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(_tvm_attention_architecture aarch64)
else()
  set(_tvm_attention_architecture "${CMAKE_SYSTEM_PROCESSOR}")
endif()
set(_tvm_attention_folder "${_tvm_attention_root}/${_tvm_attention_architecture}")
if(NOT EXISTS "${_tvm_attention_folder}/libtvm_attention.so")
  set(tvm_attention_FOUND FALSE)
  set(tvm_attention_NOT_FOUND_MESSAGE
      "this export has no archive for ${CMAKE_SYSTEM_PROCESSOR}; export for such a target too")
  return()
endif()
find_package(Threads REQUIRED)
if(NOT TARGET tvm_attention::shared)
  add_library(tvm_attention::shared SHARED IMPORTED)
  set_target_properties(
    tvm_attention::shared
    PROPERTIES IMPORTED_LOCATION "${_tvm_attention_folder}/libtvm_attention.so"
               IMPORTED_SONAME libtvm_attention.so
               INTERFACE_INCLUDE_DIRECTORIES "${_tvm_attention_root}/include")
  add_library(tvm_attention::static STATIC IMPORTED)
  set_target_properties(
    tvm_attention::static
    PROPERTIES IMPORTED_LOCATION "${_tvm_attention_folder}/libtvm_attention.a"
               INTERFACE_INCLUDE_DIRECTORIES "${_tvm_attention_root}/include"
               INTERFACE_LINK_LIBRARIES "Threads::Threads;m")
endif()
