// Work captured as a graph: one launch for all of it.
#pragma once

#include <functional>
#include <memory>

namespace qdelta::cuda {

class Context;
class Graph;

// Runs `work`, which must only put things on the context's stream, without its doing anything yet.
[[nodiscard]] std::shared_ptr<Graph> capture(const Context& context, const std::function<void()>& work);
void launch(const Context& context, const Graph& graph);

}  // namespace qdelta::cuda
