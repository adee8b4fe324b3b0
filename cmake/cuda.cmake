# The CUDA backend, part of the engine: code for compute capability 8.0 (and PTX for newer cards), and for Hopper.
# Included before the other libraries: targets are compiled in the order in which they are made, and the longest
# compilation of all, a kernel's, must not begin last.
set(QDELTA_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING "Compute capabilities to compile for")
set(CMAKE_CUDA_ARCHITECTURES ${QDELTA_CUDA_ARCHITECTURES})
find_program(QDELTA_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT QDELTA_NVCC)
  message(FATAL_ERROR "CUDA=1 needs NVIDIA's CUDA toolkit 13 (nvcc), which is not on this machine. For the CPU alone: cmake --preset cpu")
endif()
set(CMAKE_CUDA_COMPILER ${QDELTA_NVCC})
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit REQUIRED)

# A target of its own, so that the kernels can be compiled without the rest.
file(GLOB QDELTA_CUDA_SOURCES CONFIGURE_DEPENDS src/kernels/cuda/*.cu src/kernels/cuda/*.cpp)
# The backward scan takes longer than all files that are not of the chunk form together: it is the first.
file(GLOB QDELTA_CUDA_LONG CONFIGURE_DEPENDS src/kernels/cuda/recurrence_chunk_scan_*.cu)
list(REMOVE_ITEM QDELTA_CUDA_SOURCES ${QDELTA_CUDA_LONG})
add_library(qdelta_cuda OBJECT ${QDELTA_CUDA_LONG} ${QDELTA_CUDA_SOURCES})
set_target_properties(qdelta_cuda PROPERTIES CUDA_STANDARD 20)
target_include_directories(qdelta_cuda PRIVATE src)
# fmt 9 does not know nvcc's constexpr, and nvcc warns about fmt's conversions to its own types.
target_compile_definitions(qdelta_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
target_compile_options(qdelta_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-diag-suppress=554>)
target_link_libraries(qdelta_cuda PUBLIC CUDA::cudart_static CUDA::cublasLt fmt::fmt PRIVATE qdelta_warnings)

# Makes it part of the libraries that use it, when they are there.
macro(qdelta_add_cuda)
  target_sources(qdelta_operators PRIVATE $<TARGET_OBJECTS:qdelta_cuda>)
  # The files that dispatch to a GPU; no other depends on whether there is one.
  file(GLOB QDELTA_DISPATCHING CONFIGURE_DEPENDS src/kernels/*.cpp)
  set_source_files_properties(${QDELTA_DISPATCHING} PROPERTIES COMPILE_DEFINITIONS QDELTA_WITH_CUDA)
  target_link_libraries(qdelta_operators PUBLIC CUDA::cudart_static CUDA::cublasLt)

  # NCCL's own declarations are not needed; CUDA's streams are.
  file(GLOB QDELTA_NCCL_SOURCES CONFIGURE_DEPENDS src/distributed/cuda/*.cpp)
  target_sources(qdelta_distributed PRIVATE ${QDELTA_NCCL_SOURCES})
  set_source_files_properties(src/distributed/open.cpp PROPERTIES COMPILE_DEFINITIONS QDELTA_WITH_CUDA)
endmacro()
