#include "analyze/identities.h"

#include <Eigen/LU>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analyze/figures.h"
#include "analyze/history.h"

namespace qdelta::analyze {
namespace {

constexpr std::int64_t kChunk = 64;
constexpr const char* kModelOutput = "model_output";
constexpr double kHolds = 1e-10;

constexpr std::array<const char*, 8> kOrder{"query_readout", "key_readout", "one_step",     "error_path",
                                            "wy_product",    "wy_state",    "ut_transform", kModelOutput};

template <class Left, class Right>
void compare(Difference& difference, const Left& left, const Right& right) {
  difference.error += (left - right).squaredNorm();
  difference.size += right.squaredNorm();
}

}  // namespace

double Difference::relative() const {
  if (error == 0) return 0;
  return std::sqrt(error / size);
}

struct IdentityState {
  Matrix before;  // the state that the last token left
  Vector x, v, error;
  // Of the first chunk of a sequence.
  Matrix product, w, u, keys, inputs, values;
  Vector erase, log_gamma;

  void start(const Step& s) {
    before = Matrix::Zero(s.k.size(), s.v.size());
    product = Matrix::Identity(s.k.size(), s.k.size());
    w = Matrix::Zero(kChunk, s.k.size());
    u = Matrix::Zero(kChunk, s.v.size());
    keys = Matrix::Zero(kChunk, s.k.size());
    inputs = keys;
    values = u;
    erase = Vector::Zero(kChunk);
    log_gamma = Vector::Zero(kChunk);
  }
};

HeadIdentities::HeadIdentities(HeadName name) : name_(name), state_(std::make_unique<IdentityState>()) {}
HeadIdentities::HeadIdentities(HeadIdentities&&) noexcept = default;
HeadIdentities& HeadIdentities::operator=(HeadIdentities&&) noexcept = default;
HeadIdentities::~HeadIdentities() = default;

void HeadIdentities::add(const LayerTrace& trace, const Step& s, const KeyHistory& history) {
  const auto o = Eigen::Map<const Eigen::VectorXf>(
      trace.o.data() + (s.token * trace.v_heads + name_.head) * trace.value_dim, trace.value_dim);
  compare(differences_[kModelOutput], o.cast<double>(), trace.scale * s.output);
  if (!history.looks(s)) return;
  IdentityState& m = *state_;
  if (s.position == 0) m.start(s);

  // Weighted sums of past values, against the state itself.
  const auto readout = [&](const Vector& y) -> Vector {
    const Vector weights = history.writes().cwiseProduct(history.keys() * y);
    return history.values().transpose() * weights;
  };
  if (s.position > 0) {
    compare(differences_["query_readout"], readout(s.q), Vector(m.before.transpose() * s.q));
    compare(differences_["key_readout"], readout(s.k), Vector(m.before.transpose() * s.k));
  }
  const bool erases = traits_of(trace.rule).erases;
  const Vector predicted = m.before.transpose() * s.x;
  const Vector error_before = s.v - s.alpha * predicted;
  const Vector error = s.v - s.state.transpose() * s.x;
  if (erases) {
    compare(differences_["one_step"], Vector((1 - s.erase * s.k.dot(s.x)) * error_before), error);
    if (s.position > 0) {
      const Vector dp = m.before.transpose() * (s.x - m.x);
      compare(differences_["error_path"], Vector(m.error + (s.v - m.v) - dp + (1 - s.alpha) * predicted), error_before);
    }
  }

  // The chunk forms, on the first chunk: from an empty state G^r is the state.
  if (erases && s.position < kChunk) {
    const Eigen::Index r = s.position;
    m.keys.row(r) = s.k.transpose();
    m.inputs.row(r) = s.x.transpose();
    m.values.row(r) = s.v.transpose();
    m.erase[r] = s.erase;
    m.log_gamma[r] = (r > 0 ? m.log_gamma[r - 1] : 0) + std::log(s.alpha);
    const Vector along = m.keys.topRows(r) * s.x;  // k_i . x_r
    const Vector decay = (m.log_gamma[r] - m.log_gamma.head(r + 1).array()).exp();
    m.w.row(r) = s.erase * (s.x.transpose() - along.transpose() * m.w.topRows(r));
    m.u.row(r) = s.erase * (s.v.transpose() - along.cwiseProduct(decay.head(r)).transpose() * m.u.topRows(r));
    m.product -= s.erase * (m.product * s.x) * s.k.transpose();
    const Matrix wy = Matrix::Identity(s.k.size(), s.k.size()) - m.w.topRows(r + 1).transpose() * m.keys.topRows(r + 1);
    compare(differences_["wy_product"], wy, m.product);
    const Matrix state = m.keys.topRows(r + 1).transpose() * decay.asDiagonal() * m.u.topRows(r + 1);
    compare(differences_["wy_state"], state, s.state);
    const bool last = r + 1 == kChunk || s.token + 1 == trace.offsets[static_cast<std::size_t>(s.sequence) + 1];
    if (last) {
      Matrix lower = Matrix::Identity(r + 1, r + 1);
      for (Eigen::Index i = 0; i <= r; ++i) {
        for (Eigen::Index j = 0; j < i; ++j) {
          lower(i, j) = m.erase[i] * std::exp(m.log_gamma[i] - m.log_gamma[j]) * m.inputs.row(i).dot(m.keys.row(j));
        }
      }
      const Matrix right = m.erase.head(r + 1).asDiagonal() * m.values.topRows(r + 1);
      const Matrix solved = lower.triangularView<Eigen::UnitLower>().solve(right);
      compare(differences_["ut_transform"], solved, m.u.topRows(r + 1));
    }
  }
  m.before = s.state;
  m.x = s.x;
  m.v = s.v;
  m.error = error;
}

double largest_difference(const std::vector<HeadIdentities>& heads) {
  double largest = 0;
  for (const HeadIdentities& head : heads) {
    for (const auto& [name, difference] : head.differences()) {
      if (name != kModelOutput) largest = std::max(largest, difference.relative());
    }
  }
  return largest;
}

Section identities_section(const std::vector<HeadIdentities>& heads) {
  Csv table({"layer", "head", "identity", "relative_difference"});
  Section section;
  section.id = "identities";
  section.title = "The paper's identities on this model";
  section.shows =
      "How far apart the two sides of each identity are, relative to their size: a dot for each head. "
      "The rightmost column is something else: the distance between the output of the model's own kernels, in their "
      "precision, and the recurrence in double precision.";
  section.reading =
      "Both sides are computed in double precision, each from its own definition, so differences near 1e-16 to 1e-12 "
      "are rounding and the identity holds. A value near 1 would mean that it does not.";
  section.formula =
      "S_{t−1} q = Σ_τ β_τ (k̃_τ·q) v_τ;   v − S_t x = (1 − β a)(v − α S_{t−1} x);   v_t − α S_{t−1} x_t = e_{t−1} + Δv "
      "− Δp + (1 − α) S_{t−1} x_t;   Π (I − β x kᵀ) = I − Σ w kᵀ;   S_r = Σ (γ_r/γ_i) ũ_i k_iᵀ;   Ũ = (I + "
      "strictLower(diag(β) Γ∘X Kᵀ))⁻¹ diag(β) V";
  section.figure.panels.resize(1);
  section.figure.height = 420;
  plot::Panel& panel = section.figure.panels[0];
  panel.y = {.label = "relative difference", .scale = plot::Scale::log, .high = 1.0};
  std::map<std::int64_t, plot::Series> layers;
  double smallest = 1e-16;
  for (const char* name : kOrder) {
    const auto place = static_cast<double>(panel.x.categories.size());
    bool found = false;
    for (const HeadIdentities& head : heads) {
      const auto difference = head.differences().find(name);
      if (difference == head.differences().end()) continue;
      found = true;
      const double relative = difference->second.relative();
      table.add({head.name().layer, head.name().head, name, relative});
      plot::Series& series = layers[head.name().layer];
      series.x.push_back(place + 0.4 * (static_cast<double>(head.name().head % 8) / 7 - 0.5));
      series.y.push_back(std::max(relative, 1e-17));
      smallest = std::min(smallest, series.y.back());
    }
    if (!found) continue;
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    panel.x.categories.push_back(words);
  }
  panel.y.low = smallest / 2;
  panel.x.low = -0.5;
  panel.x.high = static_cast<double>(panel.x.categories.size()) - 0.5;
  panel.guides = {{plot::Guide::Along::x, kHolds, "1e-10"}};
  for (auto& [layer, series] : layers) {
    series.label = layer_label(layer);
    series.kind = plot::Kind::scatter;
    panel.series.push_back(std::move(series));
  }
  double output = 0;
  for (const HeadIdentities& head : heads) {
    output = std::max(output, head.differences().at(kModelOutput).relative());
  }
  const double largest = largest_difference(heads);
  section.facts = {{"largest relative difference of an identity",
                    fmt::format("{} ({})", number(largest), largest < kHolds ? "they hold" : "NOT rounding")},
                   {"largest difference between the model's output and the recurrence in double", number(output)}};
  section.tables = {{"identities", std::move(table)}};
  return section;
}

}  // namespace qdelta::analyze
