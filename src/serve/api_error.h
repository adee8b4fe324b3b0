// What a client is told when its request is not answered: the HTTP status, and an object as OpenAI's API has it.
//
//   {"error": {"message": "...", "type": "invalid_request_error", "param": "prompt", "code": null}}
#pragma once

#include <nlohmann/json.hpp>

#include <exception>
#include <string>
#include <utility>

namespace qdelta::serve {

class ApiError : public std::exception {
 public:
  ApiError(int status, std::string message, std::string parameter = "")
      : status_(status), message_(std::move(message)), parameter_(std::move(parameter)) {}

  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }
  [[nodiscard]] int status() const { return status_; }
  // The field of the request that is wrong; empty where it is none in particular.
  [[nodiscard]] const std::string& parameter() const { return parameter_; }

  [[nodiscard]] nlohmann::json body() const {
    const char* type = status_ < 500 ? "invalid_request_error" : "server_error";
    nlohmann::json parameter = nullptr;
    if (!parameter_.empty()) parameter = parameter_;
    return {{"error", {{"message", message_}, {"type", type}, {"param", parameter}, {"code", nullptr}}}};
  }

 private:
  int status_;
  std::string message_, parameter_;
};

}  // namespace qdelta::serve
