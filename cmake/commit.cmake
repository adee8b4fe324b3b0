# Writes OUTPUT, a header with the commit that is built, where that has changed. Run at every build:
#   cmake -DSOURCE=... -DOUTPUT=... -P commit.cmake
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(commit STREQUAL "")
  set(commit "unknown")  # no repository, or no git
else()
  execute_process(COMMAND git -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE changed ERROR_QUIET)
  if(NOT changed EQUAL 0)
    set(commit "${commit} with changes")
  endif()
endif()
set(text "#define QDELTA_COMMIT \"${commit}\"\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUTPUT} ${text})
endif()
