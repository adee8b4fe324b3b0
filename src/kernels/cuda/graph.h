// CUDA graphs: work captured once, replayed with one launch.
#pragma once

#include <functional>
#include <memory>

namespace qdelta::cuda {

class Context;
class Graph;

// Captures `work`, which may only enqueue on the context's stream; nothing runs until the launch.
[[nodiscard]] std::shared_ptr<Graph> capture(const Context& context, const std::function<void()>& work);
void launch(const Context& context, const Graph& graph);
// Whether the context's stream is being captured.
[[nodiscard]] bool is_capturing(const Context& context);

}  // namespace qdelta::cuda
