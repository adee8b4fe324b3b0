#include "analyze/analysis.h"

#include <fmt/format.h>

#include <cmath>
#include <mutex>

#include "analyze/contraction.h"
#include "analyze/drift.h"
#include "analyze/gates.h"
#include "analyze/history.h"
#include "analyze/identities.h"
#include "analyze/memory_length.h"
#include "analyze/state_rank.h"
#include "analyze/values_pca.h"
#include "analyze/values_similarity.h"
#include "core/error.h"
#include "core/threads.h"

namespace qdelta::analyze {
namespace {

struct Place {
  const LayerTrace* trace;
  std::int64_t head;
};

std::vector<Place> places_of(const std::vector<LayerTrace>& traces, const AnalysisOptions& options) {
  std::vector<Place> places;
  for (const LayerTrace& trace : traces) {
    if (options.heads.empty()) {
      for (std::int64_t head = 0; head < trace.v_heads; ++head) places.push_back({&trace, head});
    }
    for (const std::int64_t head : options.heads) {
      require(head >= 0 && head < trace.v_heads, "there is no head {}: layer {} has heads 0 to {}", head, trace.layer,
              trace.v_heads - 1);
      places.push_back({&trace, head});
    }
  }
  return places;
}

// One of each analysis, fed by one recurrence.
struct Head {
  HeadContraction contraction;
  HeadDrift drift;
  HeadSimilarity similarity;
  HeadPca pca;
  HeadGates gates;
  HeadMemory memory;
  HeadRank rank;
  HeadIdentities identities;

  explicit Head(HeadName name)
      : contraction{name, {}},
        drift{},
        similarity{name, {}},
        pca{},
        gates{name, {}, {}, {}},
        memory{},
        rank{name, {}},
        identities(name) {
    drift.name = name;
    pca.name = name;
    memory.name = name;
  }
};

void go_through(const LayerTrace& trace, std::int64_t history_tokens, Head& head, const std::atomic<bool>& stop) {
  HeadRecurrence recurrence(trace, head.contraction.name.head);
  KeyHistory history(history_tokens);
  while (!stop && recurrence.next()) {
    const Step& step = recurrence.step();
    history.begin(step);
    head.memory.add(step, history);
    head.identities.add(trace, step, history);
    if (history.looks(step)) history.end(step);
    head.contraction.add(step);
    head.drift.add(step);
    head.similarity.add(step);
    head.pca.add(step);
    head.gates.add(step);
    head.rank.add(step);
  }
  head.pca.finish();
}

// One analysis of all heads.
template <class T>
std::vector<T> all_of(std::vector<Head>& heads, T Head::*member) {
  std::vector<T> result;
  for (Head& head : heads) result.push_back(std::move(head.*member));
  return result;
}

void check_finite(const std::vector<LayerTrace>& traces) {
  for (const LayerTrace& trace : traces) {
    for (const auto* values : {&trace.q, &trace.k, &trace.v, &trace.g, &trace.beta, &trace.lambda}) {
      for (const float value : *values) {
        require(std::isfinite(value), "layer {} of the model computes numbers that are not finite on this text",
                trace.layer);
      }
    }
  }
}

}  // namespace

std::int64_t head_count(const std::vector<LayerTrace>& traces, const AnalysisOptions& options) {
  return static_cast<std::int64_t>(places_of(traces, options).size());
}

std::optional<Analysis> analyse(const std::vector<LayerTrace>& traces, const AnalysisOptions& options,
                                const std::atomic<bool>& stop, const std::function<void(std::int64_t)>& progress) {
  require(!traces.empty() && traces.front().tokens() > 0, "there is nothing to analyse");
  require(options.history > 0, "the history is {} tokens, expected at least 1", options.history);
  check_finite(traces);
  const std::vector<Place> places = places_of(traces, options);
  std::vector<Head> heads;
  for (const Place& place : places) heads.emplace_back(HeadName{place.trace->layer, place.head});

  std::mutex mutex;
  std::int64_t done = 0;
  std::exception_ptr error;
  parallel_for(static_cast<std::int64_t>(places.size()), thread_count(options.threads), [&](std::int64_t i, int) {
    const auto at = static_cast<std::size_t>(i);
    try {
      go_through(*places[at].trace, options.history, heads[at], stop);
      const std::lock_guard lock(mutex);
      progress(++done);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
  if (stop) return std::nullopt;

  const LayerTrace& first = traces.front();
  const RuleTraits& traits = traits_of(first.rule);
  const std::vector<HeadDrift> drift = all_of(heads, &Head::drift);
  const std::vector<HeadIdentities> identities = all_of(heads, &Head::identities);
  Analysis analysis;
  if (traits.erases) {
    analysis.sections.push_back(contraction_section(all_of(heads, &Head::contraction)));
    analysis.sections.push_back(drift_section(drift));
    analysis.sections.push_back(bound_section(drift));
  } else {
    for (const char* title :
         {"One-step contraction", "Drift between tokens", "Measured error and the theorem's bound"}) {
      analysis.left_out.push_back(
          {title, fmt::format("{} only adds to its memory: no write corrects a prediction.", traits.title)});
    }
  }
  analysis.sections.push_back(values_similarity_section(all_of(heads, &Head::similarity)));
  analysis.sections.push_back(values_pca_section(all_of(heads, &Head::pca)));
  Section gates = gates_section(first.rule, all_of(heads, &Head::gates));
  if (gates.figure.panels.empty()) {
    analysis.left_out.push_back({gates.title, fmt::format("{} has none.", traits.title)});
  } else {
    analysis.sections.push_back(std::move(gates));
  }
  analysis.sections.push_back(memory_length_section(all_of(heads, &Head::memory)));
  analysis.sections.push_back(state_rank_section(all_of(heads, &Head::rank), first.key_dim));
  analysis.sections.push_back(identities_section(identities));
  analysis.largest_identity_difference = largest_difference(identities);
  return analysis;
}

}  // namespace qdelta::analyze
