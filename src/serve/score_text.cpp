#include "serve/score_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "serve/json_text.h"

namespace qdelta::serve {
namespace {

constexpr std::size_t kLongEnough = 32U << 10U;
constexpr std::array kLists{"tokens", "token_logprobs", "top_logprobs", "text_offset"};

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

// As many digits as it takes to read the same number again.
void put_number(float value, std::string& out) {
  fmt::format_to(std::back_inserter(out), "{}", static_cast<double>(value));
}

}  // namespace

bool ScoreText::put(std::span<const ScoredToken> tokens, Position& at, std::string& out) {
  const int lists = chat_ ? 1 : static_cast<int>(kLists.size());
  for (; at.list < lists; ++at.list) {
    if (at.token == 0) {
      const char* name = chat_ ? "content" : kLists[static_cast<std::size_t>(at.list)];
      fmt::format_to(std::back_inserter(out), "{}\"{}\":[", at.list == 0 ? "{" : ",", name);
    }
    for (; at.token < tokens.size(); ++at.token) {
      // Not between a list's name and its first value: nothing would tell that the name has been written.
      if (at.token > 0 && out.size() >= kLongEnough) return false;
      if (at.token > 0) out += ',';
      if (chat_) {
        put_chat_token(tokens[at.token], out);
      } else {
        put_completion_value(at.list, tokens[at.token], out);
      }
    }
    at.token = 0;
    out += ']';
  }
  out += '}';
  return true;
}

void ScoreText::put_completion_value(int list, const ScoredToken& token, std::string& out) {
  if (list == 0) {
    out += json_string(token_text_(token.token));
  } else if (list == 3) {
    fmt::format_to(std::back_inserter(out), "{}", offset_);
    offset_ += characters(stream_.push(token.token));
  } else if (!token.log_probability) {
    out += "null";
  } else if (list == 1) {
    put_number(*token.log_probability, out);
  } else {
    put_top(token, out);
  }
}

void ScoreText::put_top(const ScoredToken& token, std::string& out) const {
  std::set<std::string> names;
  const auto put = [&](std::int32_t id, float log_probability) {
    std::string name = token_text_(id);
    if (names.contains(name)) name = token_text_.distinct(id);
    out += names.empty() ? "{" : ",";
    out += json_string(name) + ":";
    put_number(log_probability, out);
    names.insert(std::move(name));
  };
  bool among = false;
  for (const TokenChance& chance : token.top) {
    put(chance.token, chance.log_probability);
    among = among || chance.token == token.token;
  }
  // The token itself is always there.
  if (!among) put(token.token, *token.log_probability);
  out += '}';
}

void ScoreText::put_chat_token(const ScoredToken& token, std::string& out) const {
  const auto put = [&](std::int32_t id, float log_probability) {
    out += "{\"token\":" + json_string(token_text_(id)) + ",\"logprob\":";
    put_number(log_probability, out);
    out += ",\"bytes\":[";
    bool first = true;
    for (const char c : token_text_.bytes(id)) {
      fmt::format_to(std::back_inserter(out), "{}{}", first ? "" : ",",
                     static_cast<unsigned>(static_cast<unsigned char>(c)));
      first = false;
    }
    out += ']';
  };
  put(token.token, token.log_probability.value_or(0.0F));
  out += ",\"top_logprobs\":[";
  for (const TokenChance& chance : token.top) {
    if (out.back() != '[') out += ',';
    put(chance.token, chance.log_probability);
    out += '}';
  }
  out += "]}";
}

}  // namespace qdelta::serve
