# libqdelta: the C interface as a shared library, with its header, a CMake package and a pkg-config file.
file(GLOB QDELTA_CAPI_SOURCES CONFIGURE_DEPENDS src/capi/*.cpp)
add_library(qdelta SHARED ${QDELTA_CAPI_SOURCES})
add_library(qdelta::qdelta ALIAS qdelta)
target_compile_definitions(qdelta PRIVATE QDELTA_VERSION="${PROJECT_VERSION}")
target_link_libraries(qdelta PRIVATE qdelta_engine qdelta_warnings)
# Its threads (core/threads.h) live as long as the process: whoever unloads it takes nothing from under them.
target_link_options(qdelta PRIVATE LINKER:--exclude-libs,ALL LINKER:--as-needed LINKER:-z,nodelete)
if(NOT QDELTA_SANITIZE)  # a sanitizer's own symbols come with the program
  target_link_options(qdelta PRIVATE LINKER:-z,defs)
endif()
target_include_directories(qdelta PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set_target_properties(qdelta PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)

# The C examples double as tests of the installed interface.
function(qdelta_c_example name source)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE qdelta qdelta_warnings m ${ARGN})
  if(QDELTA_SANITIZE)  # the runtime that the library needs is the one for C++
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
endfunction()
qdelta_c_example(qdelta_example examples/q_delta.c)
qdelta_c_example(qdelta_model_example examples/model.c)
if(QDELTA_CUDA)
  qdelta_c_example(qdelta_cuda_example examples/q_delta_cuda.c CUDA::cudart)
endif()

include(CMakePackageConfigHelpers)
install(TARGETS qdelta EXPORT qdelta_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS qdelta_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES include/qdelta/qdelta.h include/qdelta/model.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qdelta)
install(EXPORT qdelta_targets NAMESPACE qdelta:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/qdelta)
configure_package_config_file(cmake/qdeltaConfig.cmake.in ${CMAKE_BINARY_DIR}/qdeltaConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/qdelta)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/qdeltaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/qdeltaConfig.cmake ${CMAKE_BINARY_DIR}/qdeltaConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/qdelta)
# From the folder of the .pc file back to the prefix: what is installed can be moved.
file(RELATIVE_PATH QDELTA_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/qdelta.pc.in ${CMAKE_BINARY_DIR}/qdelta.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/qdelta.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
