// The named states over HTTP (docs/serving.md): which requests there are, and the answers to those that need no model.
//
//   GET    /v1/states             all of them
//   POST   /v1/states             a new one: of a prompt, behind another state or not, or a copy
//   GET    /v1/states/NAME        what is known of it; with Accept: application/octet-stream its file
//   GET    /v1/states/NAME/file   its file
//   PUT    /v1/states/NAME        a file that the client has
//   DELETE /v1/states/NAME
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http.h"
#include "serve/memory_budget.h"
#include "serve/named_states.h"
#include "serve/request.h"

namespace qdelta::serve {

[[nodiscard]] nlohmann::json as_json(const NamedStates::Info& info);

class StateRoutes {
 public:
  // For a request whose prompt the model must read.
  using Read = std::function<void(const CompletionRequest&, const std::shared_ptr<Exchange>&)>;
  // `states` null: none are kept.
  StateRoutes(NamedStates* states, MemoryBudget& budget, const Limits& limits, Read read)
      : states_(states), budget_(budget), limits_(limits), read_(std::move(read)) {}

  [[nodiscard]] static bool claims(std::string_view path);
  // The methods that its path is asked with; null where its own is among them.
  [[nodiscard]] static const char* other_methods(const HttpRequest& head);
  // What else can be refused with the head alone. Throws ApiError, as does `handle`.
  void check(const HttpRequest& head) const;
  [[nodiscard]] bool is_upload(const HttpRequest& head) const { return states_ != nullptr && head.method == "PUT"; }
  void handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) const;

 private:
  void create(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) const;
  void upload(const std::string& name, const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) const;
  void download(const std::string& name, const std::shared_ptr<Exchange>& exchange) const;
  // Memory for so many states while one is handled.
  [[nodiscard]] std::unique_ptr<MemoryBudget::Share> memory(std::size_t states) const;

  NamedStates* states_;
  MemoryBudget& budget_;
  const Limits& limits_;
  Read read_;
};

}  // namespace qdelta::serve
