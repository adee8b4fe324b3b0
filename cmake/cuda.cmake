option(QDELTA_CUDA "Build the CUDA backend" OFF)
if(QDELTA_CUDA)
  message(FATAL_ERROR "The CUDA backend is not part of this version. Build for the CPU: cmake --preset cpu")
endif()
