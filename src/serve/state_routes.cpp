#include "serve/state_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/api_error.h"
#include "serve/json_text.h"
#include "serve/state_name.h"

namespace qdelta::serve {
namespace {

using nlohmann::json;

constexpr std::string_view kAll = "/v1/states";
constexpr std::string_view kFile = "/file";
constexpr std::size_t kPiece = std::size_t{256} << 10U;  // of a file that is sent

// What a path names: a state, or where the name is empty all of them; and whether its file is meant.
struct Target {
  std::string name;
  bool file = false;
};

Target target_of(const HttpRequest& request) {
  if (request.path == kAll) return {};
  std::string_view rest = std::string_view(request.path).substr(kAll.size() + 1);
  Target target;
  target.file = rest.ends_with(kFile);
  if (target.file) rest.remove_suffix(kFile.size());
  check_state_name(rest, "");
  target.name = rest;
  target.file = target.file || request.header("accept") == "application/octet-stream";
  return target;
}

void answer(const std::shared_ptr<Exchange>& exchange, const json& body) {
  exchange->answer({.status = 200, .body = json_text(body)});
}

}  // namespace

json as_json(const NamedStates::Info& info) {
  json state{{"object", "state"}, {"name", info.name}, {"created", info.saved}, {"bytes", info.bytes}};
  if (info.unusable.empty()) {
    state["tokens"] = info.tokens;
  } else {
    state["error"] = info.unusable;
  }
  return state;
}

bool StateRoutes::claims(std::string_view path) { return path == kAll || path.starts_with(fmt::format("{}/", kAll)); }

const char* StateRoutes::other_methods(const HttpRequest& head) {
  const bool all = head.path == kAll;
  const bool good =
      head.method == "GET" || (all ? head.method == "POST" : head.method == "PUT" || head.method == "DELETE");
  if (good) return nullptr;
  return all ? "GET, POST" : "GET, PUT, DELETE";
}

void StateRoutes::check(const HttpRequest& head) const {
  if (states_ == nullptr) throw ApiError(404, "this server keeps no states: it was started without --states FOLDER");
  static_cast<void>(target_of(head));
  const bool with_body = head.method == "POST" || head.method == "PUT";
  if (with_body && !head.has_body) throw ApiError(411, "the body's length is missing");
  if (with_body && head.header("content-type").starts_with("multipart/")) {
    throw ApiError(415, "the body must be the thing itself, not a form");
  }
}

void StateRoutes::handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) const {
  const Target target = target_of(request);
  if (request.method == "POST") return create(request, exchange);
  if (request.method == "PUT") return upload(target.name, request, exchange);
  if (request.method == "DELETE") {
    states_->remove(target.name);
    return answer(exchange, {{"object", "state"}, {"name", target.name}, {"deleted", true}});
  }
  if (target.file) return download(target.name, exchange);
  if (!target.name.empty()) return answer(exchange, as_json(states_->info(target.name)));
  json all = json::array();
  for (const NamedStates::Info& info : states_->list()) all.push_back(as_json(info));
  answer(exchange, {{"object", "list"}, {"data", std::move(all)}});
}

void StateRoutes::create(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) const {
  const CompletionRequest wanted = parse_state(request.body, limits_);
  if (!wanted.prompts.empty()) return read_(wanted, exchange);
  const auto share = memory(1);
  const auto room = states_->reserve(wanted.save_state);
  answer(exchange, as_json(states_->save(*room, *states_->load(wanted.state))));
}

void StateRoutes::upload(const std::string& name, const HttpRequest& request,
                         const std::shared_ptr<Exchange>& exchange) const {
  const auto share = memory(1);
  const auto room = states_->reserve(name);
  answer(exchange, as_json(states_->save(*room, *states_->parse(request.body))));
}

// The file stays mapped while it is sent, whatever happens to its name meanwhile.
void StateRoutes::download(const std::string& name, const std::shared_ptr<Exchange>& exchange) const {
  const auto file = std::make_shared<MappedFile>(states_->file(name));
  exchange->stream({.status = 200, .type = "application/octet-stream", .body = {}},
                   [file, at = std::size_t{0}]() mutable {
                     const std::span<const std::byte> rest = file->bytes().subspan(at);
                     const std::span<const std::byte> now = rest.first(std::min(kPiece, rest.size()));
                     at += now.size();
                     return Exchange::Piece{.data = {reinterpret_cast<const char*>(now.data()), now.size()},
                                            .end = now.size() == rest.size()};
                   });
}

std::unique_ptr<MemoryBudget::Share> StateRoutes::memory(std::size_t states) const {
  const std::size_t bytes = states * states_->state_bytes();
  if (bytes > budget_.most()) {
    throw ApiError(400, fmt::format("a state takes {} bytes of memory, and this server has {} for requests: it must be "
                                    "started with a larger --max-memory",
                                    bytes, budget_.most()));
  }
  auto share = budget_.take(bytes);
  if (!share) throw ApiError(503, "the requests that are being answered need all memory: try again later");
  return share;
}

}  // namespace qdelta::serve
