#include "eval/fewshot.h"

#include <string>

#include "core/error.h"
#include "eval/python_random.h"

namespace qdelta::eval {
namespace {

constexpr std::uint32_t kHarnessSeed = 1234;

}  // namespace

void add_shots(const Shots& shots, std::span<const Record> records, std::span<ChoiceQuestion> questions) {
  if (shots.count == 0) return;
  const auto count = static_cast<std::size_t>(shots.count);
  const std::size_t drawn = count + (shots.of_the_test ? 1 : 0);
  require(drawn <= shots.records.size(), "{} examples before each question, but there are only {} to draw from", count,
          shots.records.size());
  PythonRandom random(kHarnessSeed);
  for (std::size_t n = 0; n < questions.size(); ++n) {
    std::string before;
    std::size_t used = 0;
    for (const std::size_t i : random.sample(shots.records.size(), drawn)) {
      if (used == count || (shots.of_the_test && shots.records[i].value == records[n].value)) continue;
      const ChoiceQuestion& shot = shots.questions[i];
      const ChoiceRequest& solved = shot.requests[static_cast<std::size_t>(shot.gold)];
      before += solved.context + solved.continuation + "\n\n";
      ++used;
    }
    for (ChoiceRequest& request : questions[n].requests) request.context = before + request.context;
  }
}

}  // namespace qdelta::eval
