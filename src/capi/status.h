// Exceptions as status codes and messages: nothing may be thrown into C.
#pragma once

#include <exception>
#include <filesystem>
#include <new>

#include "core/error.h"
#include "qdelta/qdelta.h"

namespace qdelta {

// Keeps the message for qdelta_last_error.
qdelta_status remember(Status status, const char* message) noexcept;

// Runs a call's body.
template <class Body>
qdelta_status guarded(const Body& body) noexcept {
  try {
    body();
    return QDELTA_OK;
  } catch (const Error& error) {
    return remember(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return remember(Status::out_of_memory, "out of memory");
  } catch (const std::filesystem::filesystem_error& error) {
    return remember(Status::io, error.what());  // a path that cannot be looked at
  } catch (const std::exception& error) {
    return remember(Status::internal, error.what());
  } catch (...) {
    return remember(Status::internal, "unknown error");
  }
}

}  // namespace qdelta
