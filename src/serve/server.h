// The HTTP server: routes, limits, and what is counted. docs/serving.md has the interface.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "serve/engine.h"
#include "serve/http.h"
#include "serve/named_states.h"
#include "serve/request.h"
#include "template/chat_template.h"

namespace qdelta::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any that is free
  std::string model_name = "qdelta";
  std::string api_key;  // empty: none is asked for
  std::string cors;     // the origin whose pages may ask, or *; empty: none
  std::string log;      // a file for one line of JSON per request; empty: none, "-": standard error
  bool log_prompts = false;
  const ChatTemplate* chat = nullptr;  // null: no chats, because of:
  std::string no_chat = "the model's folder has no chat template";
  std::size_t max_body = std::size_t{8} << 20U;
  std::size_t max_memory = std::size_t{1} << 30U;  // bytes that requests and their answers may take, all together
  HttpOptions http;                                // its limits; address and max_body are those above
  Limits limits;                                   // the vocabulary is the model's
  EngineOptions engine;
  StateLimits states;  // that clients give names
};

class Server {
 public:
  // Binds; throws where that is not possible. Clients may connect from here on, and are answered once `serve` runs.
  Server(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device, const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] int port() const;
  // Answers until `stop`; then false where something was still running when its grace ended, and has been cut off.
  bool serve();
  // From any thread. Nothing new is begun; what runs may go on for so long.
  void stop(std::chrono::milliseconds grace);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace qdelta::serve
