// qdelta_options of any version, and the device that they name.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "core/error.h"
#include "kernels/recurrence.h"
#include "qdelta/qdelta.h"

namespace qdelta {

// What C put into an enumeration, which may be any number: to load it as one of ours would be undefined.
template <class Enum>
int number_of(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number = 0;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

// A struct of the caller's version, which starts with its struct_size, as one of ours: what it does not have is as in
// `defaults`, and what we do not know must be zero. `least` is the struct's size in its first version.
template <class Struct>
Struct known_fields(const Struct* given, const Struct& defaults, std::size_t least, const char* name,
                    const char* set_up) {
  require(given != nullptr, "{} is NULL; set one up with {}", name, set_up);
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  require(size >= least && size <= 4096, "{}.struct_size is {}, expected {} (at least {}); set it up with {}", name,
          size, sizeof(Struct), least, set_up);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t at = sizeof(Struct); at < size; ++at) {
    if (bytes[at] == 0) continue;
    fail(Status::unsupported, "{} has a field at byte {} that this version of the library, {}, does not know", name, at,
         QDELTA_VERSION);
  }
  Struct known = defaults;
  std::memcpy(&known, given, std::min<std::size_t>(size, sizeof(Struct)));
  return known;
}

// kDLCPU or kDLCUDA; throws for any other. `name` is for the message.
[[nodiscard]] int check_device_type(const DLDevice& device, const char* name);

// What a call computes, and where.
class CallOptions {
 public:
  explicit CallOptions(const qdelta_options* options);

  [[nodiscard]] Rule rule() const { return static_cast<Rule>(options_.rule); }
  [[nodiscard]] bool qk_l2norm() const { return options_.qk_l2norm != 0; }
  [[nodiscard]] Execution execution() const;
  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] const DLDevice& dl_device() const { return options_.device; }
  // What the caller has for the backward; empty where there is none.
  [[nodiscard]] std::span<std::byte> saved() const;
  // Of the output. `key_axis` is the axis of q that has extent K.
  [[nodiscard]] float scale(const ConstTensorView& q, int key_axis) const;
  // Calls body(Workspace&) with the caller's scratch memory; where there is none, on the CPU with the thread's own.
  template <class Body>
  void with_workspace(const Body& body) const {
    if (options_.workspace == nullptr && device_.gpu == nullptr) return body(thread_workspace());
    Workspace given(std::span(static_cast<std::byte*>(options_.workspace), workspace_size()));
    body(given);
  }

 private:
  static Workspace& thread_workspace();
  [[nodiscard]] std::size_t workspace_size() const {
    return options_.workspace == nullptr ? 0 : static_cast<std::size_t>(options_.workspace_size);
  }

  qdelta_options options_;
  Device device_;
};

}  // namespace qdelta
