#include "kernels/cuda/graph.h"

#include "kernels/cuda/context.h"

namespace qdelta::cuda {

class Graph {
 public:
  explicit Graph(cudaGraph_t graph) : graph_(graph) {}
  void instantiate() { QDELTA_CUDA(cudaGraphInstantiate(&executable_, graph_, 0)); }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  [[nodiscard]] cudaGraphExec_t executable() const { return executable_; }

 private:
  cudaGraph_t graph_;
  cudaGraphExec_t executable_ = nullptr;
};

std::shared_ptr<Graph> capture(const Context& context, const std::function<void()>& work) {
  QDELTA_CUDA(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(context.stream(), &graph);  // the stream must be usable again
    if (graph != nullptr) cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  QDELTA_CUDA(cudaStreamEndCapture(context.stream(), &graph));
  auto owner = std::make_shared<Graph>(graph);
  owner->instantiate();
  return owner;
}

void launch(const Context& context, const Graph& graph) {
  QDELTA_CUDA(cudaGraphLaunch(graph.executable(), context.stream()));
}

bool is_capturing(const Context& context) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  QDELTA_CUDA(cudaStreamIsCapturing(context.stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace qdelta::cuda
