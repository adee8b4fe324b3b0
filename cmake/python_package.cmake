# What the Python package holds (python/pyproject.toml): libqdelta, and beside it the shared libraries that it needs but those
# of every Linux system and CUDA's, which come with PyTorch. libqdelta has a DT_RPATH, which its libraries inherit, unlike a
# DT_RUNPATH: so all of them are found beside it.
if(SKBUILD)
  target_link_options(qdelta PRIVATE LINKER:--disable-new-dtags)
  set_target_properties(qdelta PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS qdelta
    RUNTIME_DEPENDENCIES
      PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\\+\\+)\\.so" "^lib(cuda|cublas|nvidia)"
    LIBRARY DESTINATION qdelta/lib NAMELINK_SKIP COMPONENT python)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION qdelta COMPONENT python)
endif()
