# Warnings are errors, and the sanitizers, in one interface target.
add_library(qdelta_warnings INTERFACE)
target_compile_options(qdelta_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion>
  $<$<AND:$<BOOL:${QDELTA_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>)

# Fused multiply-adds only where the code asks for them: the same source gives the same bits on every build.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)

if(QDELTA_SANITIZE)
  add_compile_options(-fsanitize=${QDELTA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QDELTA_SANITIZE})
endif()
