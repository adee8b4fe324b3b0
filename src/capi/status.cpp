#include "capi/status.h"

#include <string>

using namespace qdelta;

static_assert(static_cast<int>(Status::internal) == QDELTA_INTERNAL && static_cast<int>(Status::io) == QDELTA_IO);

namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace

qdelta_status qdelta::remember(Status status, const char* message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error().clear();  // no memory even for the message
  }
  return static_cast<qdelta_status>(status);
}

const char* qdelta_last_error(void) { return last_error().c_str(); }

const char* qdelta_version(void) { return QDELTA_VERSION; }

const char* qdelta_status_text(qdelta_status status) {
  switch (status) {
    case QDELTA_OK:
      return "ok";
    case QDELTA_INVALID_ARGUMENT:
      return "invalid argument";
    case QDELTA_UNSUPPORTED:
      return "unsupported";
    case QDELTA_OUT_OF_MEMORY:
      return "out of memory";
    case QDELTA_IO:
      return "input/output error";
    case QDELTA_CORRUPT:
      return "corrupt file";
    case QDELTA_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}
