// CUDA runtime calls behind kernels/device.h: enumeration of GPUs, memory, copies.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace qdelta::cuda {

class Context;

// A line for each GPU; where there is none, why_none says why.
[[nodiscard]] std::vector<std::string> names(std::string& why_none);
[[nodiscard]] std::shared_ptr<const Context> open(int ordinal);
// See kernels/caller_stream.h.
[[nodiscard]] std::shared_ptr<const Context> open_on_stream(int ordinal, void* stream);
void use_in_this_thread(const Context& context);
// Makes the context's GPU the current one; returns the one to restore, or -1 where it was current before.
[[nodiscard]] int exchange_current(const Context& context);
void restore_current(int ordinal) noexcept;

[[nodiscard]] std::byte* allocate(std::size_t bytes);
void release(std::byte* data) noexcept;
// The most bytes in use on the current GPU that allocate() has seen, the other programs' as well.
[[nodiscard]] std::size_t peak_memory();
void upload(const Context& context, void* to, const void* host, std::size_t bytes);
void download(const Context& context, void* host, const void* from, std::size_t bytes);
void copy_on_device(const Context& context, void* to, const void* from, std::size_t bytes);
void clear(const Context& context, void* data, std::size_t bytes);
void synchronize(const Context& context);

}  // namespace qdelta::cuda
