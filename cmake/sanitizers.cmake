# QDELTA_SANITIZE: everything of ours is compiled with the sanitizer; fmt, Highway, oneDNN and GoogleTest, which are the
# system's, are not.
if(QDELTA_SANITIZE)
  add_compile_options(-fsanitize=${QDELTA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QDELTA_SANITIZE})
endif()

if(QDELTA_SANITIZE MATCHES "undefined")
  # Pointers in kernels are not checked for wrapping around: Clang would take five minutes for one file. The address
  # sanitizer sees where they lead.
  file(GLOB kernels CONFIGURE_DEPENDS src/kernels/cpu/*.cpp)
  set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS -fno-sanitize=pointer-overflow)
endif()

if(QDELTA_SANITIZE MATCHES "thread")
  # The thread sanitizer cannot see that an OpenMP barrier orders anything: it needs Archer, LLVM's OpenMP tool that tells
  # it so. GCC's runtime has nothing of the kind. Archer takes part in a program as soon as it is linked to it.
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "The thread sanitizer needs Clang: with ${CMAKE_CXX_COMPILER_ID} every OpenMP loop looks like a "
      "data race. Use the preset: cmake --preset tsan")
  endif()
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-resource-dir
    OUTPUT_VARIABLE resource_folder OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_library(QDELTA_ARCHER archer HINTS ${resource_folder}/../.. REQUIRED)
  get_filename_component(archer_folder ${QDELTA_ARCHER} DIRECTORY)
  add_link_options(LINKER:--push-state,--no-as-needed ${QDELTA_ARCHER} LINKER:--pop-state,-rpath,${archer_folder})
endif()

if(QDELTA_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # LLVM's OpenMP runtime reads files which dead processes left; the file says more.
  add_library(qdelta_shared_memory OBJECT tests/sanitizer_shared_memory.cpp)
  link_libraries($<TARGET_OBJECTS:qdelta_shared_memory>)
endif()
