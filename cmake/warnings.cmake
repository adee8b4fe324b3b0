# Warnings are errors, in one interface target; and what every file is compiled with.
add_library(qdelta_warnings INTERFACE)
target_compile_options(qdelta_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion>
  $<$<AND:$<BOOL:${QDELTA_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>)

# Fused multiply-adds only where the code asks for them: the same source gives the same bits on every build.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)

include(cmake/sanitizers.cmake)
