// From a checked request to what the engine is to do for it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/tokenizer.h"
#include "serve/job.h"
#include "serve/request.h"

namespace qdelta::serve {

// The sequences of a request, its prompts as tokens behind the state `start` (null: none). Throws ApiError where they
// are too long or there is nothing to read.
[[nodiscard]] std::vector<SequenceRequest> sequences_of(const CompletionRequest& request, const Tokenizer& tokenizer,
                                                        const Limits& limits,
                                                        const std::shared_ptr<const StateCopy>& start);

// The bytes that a request may come to take on its way, until all of it has been sent.
[[nodiscard]] std::size_t bytes_of(const CompletionRequest& request, const std::vector<SequenceRequest>& sequences,
                                   const Tokenizer& tokenizer);

// About how long the text of tokens is, before any of it is made.
[[nodiscard]] std::size_t text_bytes(std::span<const std::int32_t> ids, const Tokenizer& tokenizer);

}  // namespace qdelta::serve
