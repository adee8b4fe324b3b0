// Renders templates for compare_jinja2.py. A line of JSON in, {"template", "variables", "now"}; a line out: {"text"},
// or {"error"} with "unsupported" where it is the template that needs more than there is.
#include <nlohmann/json.hpp>

#include <iostream>
#include <string>

#include "template/jinja.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = nlohmann::ordered_json::parse(line);
    nlohmann::json answer;
    try {
      qdelta::jinja::Template chat(request.at("template").get<std::string>());
      chat.clock = [&] { return request.at("now").get<std::int64_t>(); };
      answer["text"] = chat.render(request.at("variables"));
    } catch (const qdelta::Error& error) {
      answer["error"] = error.what();
      answer["unsupported"] = error.status() == qdelta::Status::unsupported;
    }
    std::cout << answer.dump() << std::endl;
  }
}
