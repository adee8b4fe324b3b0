// The text of a sequence, as its tokens come, up to a stop string. Apart from the sequence itself, so that who runs the
// model need not wait for it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "infer/prompt.h"
#include "infer/sequence.h"
#include "infer/stop_matcher.h"

namespace qdelta {

class SequenceText {
 public:
  SequenceText(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
               std::shared_ptr<const StopStrings> stops)
      : detokenizer_(stream_behind(tokenizer, prompt)), stops_(std::move(stops)) {}

  // What can be shown after an update. Where that completes a stop string, the update becomes the sequence's last.
  [[nodiscard]] std::string take(SequenceUpdate& update) {
    std::string text;
    for (const ScoredToken& token : update.generated) {
      if (token.ends_sequence) continue;
      text += stops_.push(detokenizer_.push(token.token));
      if (stops_.stopped()) {
        update.end = EndReason::stop_string;
        return text;
      }
    }
    // The text that was held back is shown after all.
    if (update.end != EndReason::none) text += stops_.finish() + detokenizer_.finish();
    return text;
  }
  [[nodiscard]] bool stopped() const { return stops_.stopped(); }

 private:
  TokenStream detokenizer_;
  StopMatcher stops_;
};

}  // namespace qdelta
